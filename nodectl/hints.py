"""For programs in Python: hints on what the program does now, so that the node's clocks follow at once.

    from nodectl import hints

    with hints.phase(3):
        assemble()
    hints.copy(matrix.nbytes)  # before a copy between host and device
    hints.kernel()  # before the launch of a kernel

Does nothing where ``NODECTL_HINTS`` is not set, and gives no right to any clock: the node's agent decides. Programs in
C include ``nodectl_hints.h``, next to ``nodectl_progress.h``; this module is that header, compiled. docs/hints.md.
"""

from __future__ import annotations

from typing import Final

from nodectl._progress import lib


def copy(n_bytes: int) -> None:
    """A copy of so many bytes between host and device begins; below 10^10 it is no hint."""
    lib.hint_copy(n_bytes)


def kernel() -> None:
    """A kernel is about to be launched on a GPU."""
    lib.hint_kernel()


class phase:
    """A phase of the program, by its own number from 1 to 2^32 - 1: ``with phase(3): ...``; afterwards it is in the
    phase that it was in before. ``OverflowError`` for another number."""

    __slots__ = ("_before", "_number")

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        self._before = lib.hint_phase(self._number)

    def __exit__(self, *_: object) -> None:
        lib.hint_phase(self._before)


class _Waiting:
    __slots__ = ()

    def __enter__(self) -> None:
        lib.hint_wait_begin()

    def __exit__(self, *_: object) -> None:
        lib.hint_wait_end()


waiting: Final = _Waiting()
"""This thread waits for other ranks: ``with waiting: request.wait()``."""
