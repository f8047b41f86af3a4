"""The node agent: samples the instruments, decides by pure policies, and moves the clocks within its caps."""

__version__ = "0.2.0"
"""The version of all parts; ``pyproject.toml`` reads it here. Reading the package's metadata would take too long."""
