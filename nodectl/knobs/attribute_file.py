"""Reading and writing one attribute file, with the kernel's refusals in words.

cpufreq returns EINVAL for a bad value and EBUSY while its driver is busy; powercap returns ENODATA for everything that
its driver refuses, above all a locked limit (drivers/powercap/powercap_sys.c, for every failed store).
"""

from __future__ import annotations

import errno
import os

from nodectl.knobs.api import KnobError, Reason, WholeNumber, unit_sign
from nodectl.knobs.recipe import FileRecipe
from pmu.driver_values import digits, type_bounds
from pmu.ports import Files, KeptFile

GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR, errno.ESTALE})
"""The attribute is not there any more: CPU offline, driver unloaded."""

SHOWN = 40
"""Ours: how much of a text that makes no sense a message shows."""

_WORDS = {
    errno.EINVAL: "the kernel finds the value out of range",
    errno.EBUSY: "the driver is busy; it is tried again later",
    errno.EACCES: "permission denied; the agent needs root, or the limit is locked by the firmware",
    errno.EPERM: "not permitted; the agent needs root",
    errno.EROFS: "mounted read-only; the unit file must allow this path (ReadWritePaths=)",
}


class NumberFile(WholeNumber):
    """A setting that is one attribute file with a whole number: what knobs of that kind have in common. ``bounds``:
    what the hardware can be at; a number outside of them is neither captured nor taken for somebody else's value."""

    bounds: type_bounds | None = None

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self._files = files

    def read(self) -> str:
        """The value in force, as digits."""
        return self._read()[0]

    def check(self) -> None:
        """``KnobError`` if the file is gone. One that is there and cannot be read is still put back."""
        try:
            read_text(self._files, self.path)
        except KnobError as error:
            if error.status == "vanished":
                raise

    def set(self, value: int) -> None:
        """Write ``value``, in the knob's unit."""
        write_text(self._files, self.path, str(value))

    def read_back(self) -> int | None:
        """The value in force."""
        return self._read()[1]

    def keep(self, path: str) -> KeptFile:
        """Keep a file of this knob, its own or a companion's, open to be read often. ``OSError`` if that fails."""
        return self._files.keep(path)

    def restore(self, captured: str) -> None:
        """Write the captured value again."""
        write_text(self._files, self.path, captured)

    def _read(self) -> tuple[str, int]:
        text = read_text(self._files, self.path)
        number = digits(text)
        if number is None:
            raise KnobError(f"{self.path} has {text[:SHOWN]!r}, not a number of {unit_sign(self.unit)}")
        if self.bounds and not self.bounds[0] <= number <= self.bounds[1]:
            raise KnobError(f"{self.path} has {number} {unit_sign(self.unit)}, which no hardware can be at")
        return text, number

    def recipe(self) -> FileRecipe:
        """The file, which keeps a number exactly as it was written."""
        return FileRecipe(self.path)


def read_text(files: Files, path: str) -> str:
    """The attribute without its newline; ``KnobError`` naming the file."""
    try:
        return files.read(path).strip()
    except OSError as error:
        raise refusal(error, path, "read") from error


def write_text(files: Files, path: str, text: str) -> None:
    """Store ``text``; ``KnobError`` naming the file, the value and what the kernel said."""
    try:
        files.write(path, text)
    except OSError as error:
        raise refusal(error, path, f"write {text} to") from error


def refusal(error: OSError, path: str, verb: str) -> KnobError:
    """What the kernel's errno means for a knob."""
    number = error.errno or 0
    if number in GONE:
        return KnobError(f"{path} is gone ({os.strerror(number)})", "vanished")
    reason: Reason = "lock bit" if number == errno.ENODATA else ""
    words = _WORDS.get(number, os.strerror(number) if number else str(error))
    if number == errno.ENODATA:
        words = "the driver refuses (ENODATA): locked by the firmware until the next boot, or out of range"
    return KnobError(f"cannot {verb} {path}: {words}", "refused", reason)
