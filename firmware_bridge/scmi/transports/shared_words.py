"""Words of memory that an agent and its platform share; each is read and written atomically."""

from __future__ import annotations

from typing import Final, Literal, Protocol, runtime_checkable

WORD_BYTES: Final = 4
_FORMATS: Final[dict[int, Literal["B", "H", "I", "Q"]]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


class SharedWords:
    """Memory that an agent shares with its platform, at the addresses in the platform's descriptions."""

    def __init__(self, memory: memoryview, base: int = 0) -> None:
        self._bytes = memory.cast("B")
        self._base = base

    def contains(self, address: int, width: int) -> bool:
        """Whether an aligned word of this size is inside this memory."""
        offset = address - self._base
        return address % width == 0 and 0 <= offset <= len(self._bytes) - width

    def load(self, address: int, width: int = WORD_BYTES) -> int:
        """Read a word atomically."""
        with self._word(address, width) as word:
            return int(word[0])

    def store(self, address: int, value: int, width: int = WORD_BYTES) -> None:
        """Write a word atomically."""
        with self._word(address, width) as word:
            word[0] = value

    def _word(self, address: int, width: int) -> memoryview:
        offset = address - self._base
        return self._bytes[offset : offset + width].cast(_FORMATS[width])

    def release(self) -> None:
        """Release the memory."""
        self._bytes.release()


@runtime_checkable
class Sharing(Protocol):
    """A transport whose agent can reach its platform's FastChannels, unlike a serial line or a virtual machine."""

    shared_words: SharedWords
