"""Which jobs of another manager are on this node: a file for each, from its prolog to its epilog.

    /run/nodectl/site-jobs/17      user=alice
                                   gpus=0,1
                                   comment=nodectl=optimize any other words

The folder is next to the node's lock and belongs to root, as prolog and epilog do: no job writes there. A prolog makes
the file under another name and renames it, so that nobody reads half of one.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from foundation.planted_links import open_safely

Mode: TypeAlias = Literal["optimize", "monitor", "off"]

MODES: Final[tuple[Mode, ...]] = ("off", "monitor", "optimize")
"""The most careful one first."""

FOLDER: Final = "site-jobs"
MOST_BYTES: Final = 8192
MOST_JOBS: Final = 1000
"""Ours: more than any node runs at a time; the others of a folder that nobody empties are not read."""

_NUMBER: Final = re.compile(r"[0-9A-Za-z_.-]{1,64}")
_GPUS: Final = re.compile(r"(?<=[=,])[0-9]{1,3}(?=,|$)")
_WORD: Final = re.compile(r"(?:^|[ ,;\t\n])nodectl=([A-Za-z]+)(?=$|[ ,;\t\n])")


@dataclass(frozen=True, slots=True)
class SiteJob:
    """A job that is here. ``began_s``: Unix seconds, when its prolog ran; ``mode``: as its comment says, else empty;
    ``gpus``: the numbers of those that Slurm gave it, as NVML and /dev/nvidiaN have them."""

    job: str
    user: str
    mode: Mode | Literal[""]
    began_s: float
    gpus: tuple[int, ...] = ()


class JobFolder:
    """``lock_path``: that of the node's ports."""

    def __init__(self, lock_path: str) -> None:
        self.path = Path(lock_path).with_name(FOLDER)
        self._known: dict[str, SiteJob] = {}

    def look(self) -> dict[str, SiteJob]:
        """The jobs by name. A folder that cannot be read has none; a job's file is read once."""
        try:
            names = [name for name in os.listdir(self.path) if _NUMBER.fullmatch(name) and name[0] != "."]
        except OSError:
            names = []
        found = {name: self._known.get(name) or _read(self.path / name) for name in sorted(names)[:MOST_JOBS]}
        self._known = {name: job for name, job in found.items() if job is not None}
        return self._known

    @property
    def changed_s(self) -> float:
        """When a job came or went last, Unix seconds; NaN: not known."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return float("nan")


def mode_in(comment: str) -> Mode | Literal[""]:
    """The first ``nodectl=`` word that is a mode; the others are tags (memory, compute) or mistakes."""
    words = (word.lower() for word in _WORD.findall(comment))
    return next((mode for word in words for mode in MODES if mode == word), "")


def _read(path: Path) -> SiteJob | None:
    """None if it has gone meanwhile, or is none that root made."""
    try:
        descriptor = open_safely(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
            return None
        text = os.read(descriptor, MOST_BYTES).decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)
    user, _, rest = text.partition("\n")
    gpus, _, comment = rest.partition("\n") if rest.startswith("gpus=") else ("", "", rest)
    return SiteJob(
        path.name,
        "".join(one if one.isprintable() and one != " " else "?" for one in user.removeprefix("user=")[:96]),
        mode_in(comment.removeprefix("comment=")),
        status.st_mtime,
        tuple(int(number) for number in _GPUS.findall(gpus)),
    )
