"""The node agent: samples the instruments, decides by pure policies, and moves the clocks within its caps."""

__version__ = "0.1.0"
"""Of all parts; ``pyproject.toml`` takes it from here. The package's metadata takes longer to read than a command."""
