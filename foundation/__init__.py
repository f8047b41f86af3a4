"""What the node agent and the cluster agent have in common: the protocol between them, and what programs are made of.

Imports nothing else of ours. Knows no sensor, no knob and no job queue.
"""

__version__ = "0.2.0"
"""The version of all parts; ``pyproject.toml`` reads it here. Reading the package's metadata would take too long."""
