"""What a run has measured so far, so that one that was killed can go on: a line of JSON for each finished stay.

The file stands next to the result and is removed once that is there. A line that was cut off is measured again. A file
of another plan (machine, kernels, clocks) is not continued.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from calibration.measure.node_session import Dwell, SessionError, Window

VERSION: Final = 1


class Plan(msgspec.Struct, frozen=True):
    """What must be the same for a run to go on. ``identity``: of the node."""

    version: int
    identity: Any
    kernels: tuple[str, ...]
    clocks: tuple[int, ...]
    is_emulated: bool


class _Idle(msgspec.Struct, frozen=True, tag="idle"):
    windows: tuple[Window, ...]


class _Stay(msgspec.Struct, frozen=True, tag="stay"):
    dwell: Dwell


class PartialFile:
    """Open for one run. ``dwells`` and ``idle``: what an earlier run has measured."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self.dwells: list[Dwell] = []
        self.idle: tuple[Window, ...] = ()
        self._head = msgspec.json.encode(plan)
        self._read()
        try:
            self._file = open(path, "ab")  # noqa: SIM115 (closed by close)
            if not self._file.tell():
                self._append(self._head)
        except OSError as error:
            raise SessionError(f"{path}: cannot be written: {error.strerror}") from None

    def stay(self, dwell: Dwell) -> None:
        """Keep a finished stay."""
        self.dwells.append(dwell)
        self._append(msgspec.json.encode(_Stay(dwell)))

    def rested(self, windows: tuple[Window, ...]) -> None:
        """Keep what the node drew idle."""
        self.idle = (*self.idle, *windows)
        self._append(msgspec.json.encode(_Idle(windows)))

    def close(self) -> None:
        """Close the file, and keep it."""
        self._file.close()

    def remove(self) -> None:
        """The result is there."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _append(self, line: bytes) -> None:
        try:
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise SessionError(f"{self.path}: cannot be written: {error.strerror}") from None

    def _read(self) -> None:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise SessionError(f"{self.path}: cannot be read: {error.strerror}") from None
        whole, _, cut = data.rpartition(b"\n")
        lines = whole.split(b"\n") if whole else []
        if lines and lines[0] != self._head:
            raise SessionError(f"{self.path}: of another machine or plan: remove it, or name another result")
        for number, line in enumerate(lines[1:], start=2):
            self._take(line, number)
        if cut or not lines:
            os.truncate(self.path, len(whole) + 1 if lines else 0)

    def _take(self, line: bytes, number: int) -> None:
        try:
            entry = msgspec.json.decode(line, type=_Idle | _Stay)
        except msgspec.DecodeError:
            raise SessionError(f"{self.path}:{number}: is damaged: remove the file") from None
        if isinstance(entry, _Idle):
            self.idle = (*self.idle, *entry.windows)
        else:
            self.dwells.append(entry.dwell)
