"""Integers in files that stay open and are read again at each sweep, natively where the files are the kernel's own."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from pmu._native import ffi, lib
from pmu.descriptors import raise_descriptor_limit
from pmu.ports import Files, KeptFile
from pmu.readings import RAW_MISSING, type_i64


class KeptIntegers(Protocol):
    """Decimal numbers in kept files. One that cannot be opened or read gives RAW_MISSING, and ``errors`` has why."""

    def sweep(self, out: type_i64) -> None:
        """Fill ``out`` ``[n_files]``."""

    def errors(self) -> list[int]:
        """The errno of each file's last sweep; 0 where it gave a number."""

    def close(self) -> None:
        """Close the files."""


@runtime_checkable
class OpensIntegers(Protocol):
    """``Files`` that can keep many integers at once, at lower cost than one by one."""

    def keep_integers(self, paths: Sequence[str]) -> KeptIntegers:
        """Keep the integers of ``paths``, in that order."""


def keep_integers(files: Files, paths: Sequence[str]) -> KeptIntegers:
    """Keep the integers of ``paths``, in that order."""
    return files.keep_integers(paths) if isinstance(files, OpensIntegers) else IntegersOneByOne(files, paths)


class NativeIntegers:
    """Kept descriptors of real files, read and parsed in one native call without the interpreter's lock."""

    def __init__(self, paths: Sequence[str], opened: Sequence[int] = ()) -> None:
        """``opened``: for each path a descriptor that somebody with more rights has opened, or -1."""
        raise_descriptor_limit(len(paths), f"keeping {len(paths)} files open")
        self._count = len(paths)
        self._files: Any = ffi.new("kept_file_t[]", self._count)
        for kept, path, fd in zip(self._files, paths, opened or [-1] * len(paths), strict=True):
            try:
                kept.fd = os.dup(fd) if fd >= 0 else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                kept.fd, kept.error = -1, error.errno or errno.EIO

    def sweep(self, out: type_i64) -> None:
        """Fill ``out`` ``[n_files]``."""
        if out.shape != (self._count,) or not out.flags.c_contiguous:
            raise ValueError(f"expected a contiguous array of {self._count} integers, got shape {out.shape}")
        cells = ffi.from_buffer("int64_t[]", out, require_writable=True)
        lib.sweep_files(self._files, ffi.NULL, self._count, cells, RAW_MISSING)

    def read_some(self, at: Sequence[int]) -> list[int]:
        """The integers of the files ``at``, which are indices of ``paths``; RAW_MISSING as in ``sweep``."""
        if at and not 0 <= min(at) <= max(at) < self._count:
            raise ValueError(f"there are {self._count} files, and one of another index is requested")
        cells = ffi.new("int64_t[]", len(at))
        lib.sweep_files(self._files, ffi.new("int32_t[]", at), len(at), cells, RAW_MISSING)
        return list(ffi.unpack(cells, len(at)))

    def errors(self) -> list[int]:
        """The errno of each file's last sweep; 0 where it gave a number."""
        return [int(kept.error) for kept in self._files]

    def close(self) -> None:
        """Close the descriptors; sweeps afterwards give RAW_MISSING."""
        for kept in self._files:
            if kept.fd >= 0:
                os.close(kept.fd)
                kept.fd, kept.error = -1, errno.EBADF


class IntegersOneByOne:
    """``KeptIntegers`` for any ``Files``."""

    def __init__(self, files: Files, paths: Sequence[str]) -> None:
        self._kept: list[KeptFile | None] = []
        self._errors = [0] * len(paths)
        for i, path in enumerate(paths):
            try:
                self._kept.append(files.keep(path))
            except OSError as error:
                self._kept.append(None)
                self._errors[i] = error.errno or errno.EIO

    def sweep(self, out: type_i64) -> None:
        """Fill ``out`` ``[n_files]``."""
        for i, kept in enumerate(self._kept):
            out[i] = RAW_MISSING
            if kept is None:
                continue
            try:
                out[i] = int(kept.read())
                self._errors[i] = 0
            except OSError as error:
                self._errors[i] = error.errno or errno.EIO
            except ValueError:
                self._errors[i] = errno.EINVAL
            except OverflowError:
                self._errors[i] = errno.ERANGE

    def errors(self) -> list[int]:
        """The errno of each file's last sweep; 0 where it gave a number."""
        return list(self._errors)

    def close(self) -> None:
        """Close the files; sweeps afterwards give RAW_MISSING."""
        for i, kept in enumerate(self._kept):
            if kept is not None:
                kept.close()
                self._kept[i], self._errors[i] = None, errno.EBADF
