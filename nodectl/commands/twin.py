"""``nodectl twin``: the emulated node's own commands. Nothing else here imports it."""

from twin.cli import twin

__all__ = ["twin"]
