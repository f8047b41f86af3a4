"""Clock limits that are written together: a node of 384 CPUs has as many, and they change at the same tick.

One by one each costs three times open, read or write, and close. Here their files stay open, and those that change are
read in one native call. Only the plain case is done so: a clock limit that reads as our last value, and that is lowered
or raised to at most its captured value. Every other knob, and every one that does not then read as it was written, goes
the long way through the writer, which finds out why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from nodectl.knobs.api import Knob, Outcome
from nodectl.knobs.clock_limit import ClockLimit
from pmu.instruments.kept import NativeIntegers
from pmu.readings import RAW_MISSING


class ManyFiles:
    """The clock limits among ``knobs``, which are real files below ``root``. ``check`` is called before each write and
    raises ``KnobError`` where it must not be done."""

    def __init__(self, knobs: Iterable[Knob], root: str, check: Callable[[str], None]) -> None:
        paths = {knob.name: root + knob.path for knob in knobs if isinstance(knob, ClockLimit)}
        self._at = {name: at for at, name in enumerate(paths)}
        self._check = check
        self._fds = {name: _open(path) for name, path in paths.items()}
        self._files = NativeIntegers(list(paths.values()), list(self._fds.values()))
        self._lengths: dict[str, int] = {}

    def present(self, names: Iterable[str]) -> dict[str, int]:
        """What the clock limits among ``names`` are at; without those that cannot be read."""
        wanted = [name for name in names if name in self._at]
        found = self._files.read_some([self._at[name] for name in wanted])
        return {name: value for name, value in zip(wanted, found, strict=True) if value != RAW_MISSING}

    def write(self, values: Mapping[str, int]) -> dict[str, int]:
        """Write those that are clock limits, and read them back."""
        fds, lengths, check, pwrite = self._fds, self._lengths, self._check, os.pwrite
        texts = {value: b"%d\n" % value for value in set(values.values())}
        for name, value in values.items():
            fd = fds.get(name, -1)
            if fd < 0:
                continue
            check(name)
            text = texts[value]
            try:
                if len(text) != lengths.get(name):  # the rest of a longer text would stay, but in sysfs
                    os.ftruncate(fd, 0)
                    lengths[name] = len(text)
                pwrite(fd, text, 0)
            except OSError:
                continue  # the long way finds out why
        return self.present(values)

    def close(self) -> None:
        """Close the files."""
        self._files.close()
        for fd in self._fds.values():
            if fd >= 0:
                os.close(fd)
        self._fds.clear()


@lru_cache(maxsize=16384)
def as_written(name: str, value: int) -> Outcome:
    """The outcome of a plain write. Knobs have few values, and making an outcome takes longer than looking it up."""
    return Outcome(name, "written", str(value))


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1
