"""Text of a submission as a vector: job name, account, partition, script."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Float32s: TypeAlias = npt.NDArray[np.float32]

CACHED: Final = 4096
"""Ours: how many texts' vectors are cached. Users submit the same few names again and again."""


class Embedding(Protocol):
    """A text as a vector of ``size``, of length 1 (0 for an empty text). Similar texts have similar vectors."""

    @property
    def size(self) -> int:
        """Of every vector."""
        ...

    def __call__(self, text: str) -> Float32s:
        """Read only: the same vector may be returned again."""
        ...


class HashedNgrams:
    """Counts of the text's character n-grams, hashed into ``size`` places.

    The hash's lowest bit gives the sign, so that collisions cancel on average (Weinberger et al., Feature hashing for
    large scale multitask learning, ICML 2009). Digits count as one sign: ``run_017`` and ``run_018`` are one job.
    """

    def __init__(self, size: int = 64, lengths: tuple[int, ...] = (3, 4)) -> None:
        self._size = size
        self._lengths = lengths
        self._vector = lru_cache(CACHED)(self._counted)

    @property
    def size(self) -> int:
        """Of every vector."""
        return self._size

    def __call__(self, text: str) -> Float32s:
        """Upper and lower case are the same."""
        return self._vector("".join("0" if sign.isdigit() else sign for sign in text.lower()))

    def _counted(self, text: str) -> Float32s:
        counts = [0] * self._size
        padded = f" {text} " if text else ""
        for length in self._lengths:
            for at in range(len(padded) - length + 1):
                code = zlib.crc32(padded[at : at + length].encode("utf-8", "surrogatepass"))
                counts[(code >> 1) % self._size] += 1 if code & 1 else -1
        vector = np.array(counts, np.float32)
        norm = float(np.linalg.norm(vector))
        if norm:
            vector /= norm
        vector.flags.writeable = False
        return vector
