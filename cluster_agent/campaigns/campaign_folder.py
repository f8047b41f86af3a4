"""A campaign's folder, which any number of workers on any number of machines share: who runs which cell.

A cell is one folder that moves from place to place, and **every step is one rename(2)**, which is atomic on a POSIX
file system, local or shared. The place that a folder is moved from exists once, so of several that try one succeeds:

    .campaign/plan/000001/part.json   what is to be replayed; a part never changes, later parts add to earlier ones
    .campaign/waiting/KEY             a cell that waits for a worker; KEY follows from its name
    .campaign/running/KEY.WORKER.N    claimed: its worker writes the results in there
    NAME/                             recorded: the claim's folder with all results, moved by the worker that wrote them
    .campaign/lost/KEY.WORKER.N       claims that were taken from a worker that is silent
    .campaign/failed/KEY/why          a cell that cannot run
    .campaign/workers/WORKER          a heartbeat: a number that goes up while the worker lives
    .campaign/superseded/NAME         a record of other files or code, aside

A claim that was taken is no longer at its path. Whatever its worker does when it wakes up, it finds no folder to write
to and none to move, so it records nothing; the cell starts again in a new folder. **No clock of two machines is ever
compared**: a worker is silent if its heartbeat has not changed over the lease, by the steady clock of whoever watches.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.campaigns.campaign_grid import Cell, Published
from cluster_agent.errors import ClusterError, WrongUseError

DONE: Final = "campaign.json"
"""The manifest of a cell: its arguments, and the SHA-256 of its files, its policy and the code."""
STATE: Final = ".campaign"
MOST_LOST: Final = 5
"""Ours: a cell whose worker has ended so often ends every worker."""
STALE: Final = 32
"""Ours: after so many cells in a row that others have taken, the list of those that wait is read again."""


class Part(msgspec.Struct, frozen=True):
    """What one command adds to a folder."""

    file: str
    listing: str  # the SHA-256 of what the campaign's file lists
    directory: str  # where the command ran: relative paths of the cells start there
    lease_s: float
    cells: dict[str, Cell]
    published: tuple[Published, ...] = ()


class Planned(msgspec.Struct, frozen=True):
    """A cell, and where its relative paths start."""

    name: str
    cell: Cell
    directory: str


class Claim(msgspec.Struct, frozen=True):
    """A cell that a worker runs. Its results go into ``path``, which is gone if the claim was taken."""

    planned: Planned
    path: Path


def key_of(name: str) -> str:
    """The name of a cell's folder until it is recorded: short, so that a worker's name fits behind it."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def moved(source: Path, target: Path) -> bool:
    """Move a folder; whether it was this call that has moved it. ``target`` may be there if it is empty.

    A server that repeats a lost answer says that there is nothing to move: then the folder itself says where it is.
    """
    try:
        number = source.stat().st_ino
    except FileNotFoundError:
        return False
    try:
        source.rename(target)
    except FileNotFoundError:
        try:
            return target.stat().st_ino == number
        except FileNotFoundError:
            return False
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


class CampaignFolder:
    """The folder ``root``, as one worker or command uses it. Every ``OSError`` comes through: the folder cannot be
    reached, or it is full."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.state = self.root / STATE
        self.planned: dict[str, Planned] = {}
        """By name, in the order of the campaign."""
        self.parts: list[Part] = []
        self._by_key: dict[str, Planned] = {}
        self._waiting: deque[str] = deque()

    def _place(self, place: str, name: str = "") -> Path:
        return self.state / place / name

    # --- the plan

    @property
    def is_there(self) -> bool:
        """Whether a campaign was started here."""
        return self._place("plan").is_dir()

    @property
    def lease_s(self) -> float:
        """For how long a worker may be silent."""
        return self.parts[0].lease_s

    def read_plan(self) -> None:
        """Read parts that are new; ``ClusterError`` for what is no part."""
        for number in range(len(self.parts) + 1, 1_000_000):
            path = self._place("plan", f"{number:06}") / "part.json"
            try:
                part = msgspec.json.decode(path.read_bytes(), type=Part)
            except FileNotFoundError:
                break
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise ClusterError(
                    f"{path}: not as a campaign writes it; start the campaign with another --out"
                ) from None
            self.parts.append(part)
            for name, cell in part.cells.items():
                self.planned[name] = self._by_key[key_of(name)] = Planned(name, cell, part.directory)

    def add(self, part: Part) -> None:
        """Make ``part`` a part of the plan, unless it says nothing new.

        ``WrongUseError`` if the folder has another campaign: one of another listing, with cells that ``part`` lacks.
        """
        for place in ("plan", "waiting", "running", "lost", "failed", "workers", "superseded"):
            self._place(place).mkdir(parents=True, exist_ok=True)
        self.read_plan()
        made = self._place("plan", f".writing-{os.urandom(4).hex()}")
        try:
            while not self._has(part):
                if not made.exists():
                    made.mkdir()
                    (made / "part.json").write_bytes(msgspec.json.encode(part))
                moved(made, self._place("plan", f"{len(self.parts) + 1:06}"))
                self.read_plan()  # what was moved, or what another command was earlier with
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _has(self, part: Part) -> bool:
        if self.parts and self.parts[-1].listing != part.listing:
            absent = [name for name in self.planned if name not in part.cells]
            if absent:
                raise WrongUseError(
                    f"--out {self.root}: it has another campaign ({self.parts[-1].file}), with {len(absent)} replays"
                    f" that {part.file} does not list, such as {absent[0]}; choose another --out"
                )
        known = {name: one.cell for name, one in self.planned.items()}
        return all(known.get(name) == cell for name, cell in part.cells.items()) and bool(self.parts)

    # --- what is done

    def is_recorded(self, planned: Planned) -> bool:
        """Whether its results are there, made from just these files by just this code."""
        try:
            content = (self.root / planned.name / DONE).read_bytes()
            return msgspec.json.decode(content, type=Cell) == planned.cell
        except (OSError, msgspec.DecodeError):
            return False

    def issue(self, names: Iterable[str], again: bool = False) -> int:
        """Let those wait that are neither recorded nor anywhere else; returns how many wait or run then.

        ``again``: those that have failed, too; and records of other files or code are put aside.
        """
        placed = {one.partition(".")[0] for place in ("waiting", "running") for one in os.listdir(self._place(place))}
        failed, present = set(os.listdir(self._place("failed"))), set(os.listdir(self.root))
        left = 0
        for name in names:
            key = key_of(name)
            if name in present:
                if not again or self.is_recorded(self.planned[name]):
                    continue
                self._put_aside(name)
            if key in failed and not again:
                continue
            left += 1
            if key in failed:
                for lost in self._place("lost").glob(f"{key}.*"):
                    shutil.rmtree(lost, ignore_errors=True)
                moved(self._place("failed", key), self._place("waiting", key))
            elif key not in placed:
                self._place("waiting", key).mkdir(exist_ok=True)
        return left

    def _put_aside(self, name: str) -> None:
        aside = self._place("superseded", name)
        shutil.rmtree(aside, ignore_errors=True)
        moved(self.root / name, aside)

    def failures(self) -> dict[str, str]:
        """Why cells have failed, by name."""
        found = {}
        for key in os.listdir(self._place("failed")):
            if planned := self._by_key.get(key):
                why = self._place("failed", key) / "why"
                found[planned.name] = why.read_text() if why.exists() else "it has failed"
        return {name: found[name] for name in self.planned if name in found}

    def unfinished(self) -> int:
        """How many cells wait or run."""
        return len(os.listdir(self._place("waiting"))) + len(os.listdir(self._place("running")))

    # --- claims

    def claim(self, worker: str, number: int) -> Claim | None:
        """The ``number``-th claim of this worker, with an empty folder; None: no cell waits."""
        in_vain = 0
        while True:
            if not self._waiting or in_vain == STALE:
                self._list_waiting()
                in_vain = 0
                if not self._waiting:
                    return None
            key = self._waiting.popleft()
            path = self._place("running", f"{key}.{worker}.{number}")
            if moved(self._place("waiting", key), path):
                with suppress(FileNotFoundError):  # this worker has stalled, and the claim was taken
                    for left in path.iterdir():  # of a worker that has given it back
                        left.unlink()
                    return Claim(self._by_key[key], path)
            in_vain += 1

    def _list_waiting(self) -> None:
        """All that wait, in the campaign's order, from a place of one's own if others are at work."""
        waiting = set(os.listdir(self._place("waiting")))
        if not waiting <= self._by_key.keys():
            self.read_plan()
        self._waiting = deque(key for key in self._by_key if key in waiting)
        if len(os.listdir(self._place("running"))) > 0:
            self._waiting.rotate(random.randrange(len(self._waiting) or 1))

    def has_waiting(self) -> bool:
        """Whether a cell may wait: by the list that was read last, or by the folder."""
        return bool(self._waiting) or bool(os.listdir(self._place("waiting")))

    def record(self, claim: Claim) -> bool:
        """Make the claim's folder the cell's record; False: the claim was taken, or the cell is recorded already."""
        is_recorded = moved(claim.path, self.root / claim.planned.name)
        if not is_recorded:
            shutil.rmtree(claim.path, ignore_errors=True)
        return is_recorded

    def give_back(self, worker: str) -> None:
        """Let all cells wait again that this worker has claimed."""
        for claim, owner in self.claims():
            if owner == worker:
                moved(self._place("running", claim), self._place("waiting", claim.partition(".")[0]))

    def fail(self, claim: Claim, why: str) -> None:
        """The cell cannot run: let it be, and say why."""
        try:
            (claim.path / "why").write_text(why)
        except FileNotFoundError:
            return  # the claim was taken
        if not moved(claim.path, self._place("failed", key_of(claim.planned.name))):
            shutil.rmtree(claim.path, ignore_errors=True)

    def claims(self) -> list[tuple[str, str]]:
        """Every claim's file name, and its worker."""
        return [(name, name.split(".")[1]) for name in os.listdir(self._place("running"))]

    def take(self, claim: str) -> bool:
        """Take this claim from its worker: the cell starts again in a new folder, or has failed if that has happened
        too often. False: its worker, or another one, was earlier."""
        key, taken = claim.partition(".")[0], self._place("lost", claim)
        if not moved(self._place("running", claim), taken):
            return False
        times = sum(name.startswith(f"{key}.") for name in os.listdir(self._place("lost")))
        if times < MOST_LOST:
            self._place("waiting", key).mkdir(exist_ok=True)
        else:
            failed = self._place("failed", key)
            failed.mkdir(exist_ok=True)
            (failed / "why").write_text(f"its worker has ended {times} times; it is left out")
        for left in taken.iterdir():  # the folder stays, and counts
            with suppress(OSError):  # of a file server where its worker has it open
                left.unlink()
        return True

    # --- heartbeats

    def beat(self, worker: str, count: int) -> None:
        """Show that the worker lives. Each time it is the same bytes' worth in place, so that a full disk takes it."""
        path = self._place("workers", worker)
        with open(path, "r+b" if path.exists() else "wb", buffering=0) as file:  # closing it shows it to other machines
            file.write(b"%020d\n" % count)

    def heartbeat(self, worker: str) -> bytes:
        """What the worker has written last; nothing if it has left."""
        try:
            return self._place("workers", worker).read_bytes()
        except FileNotFoundError:
            return b""

    def leave(self, worker: str) -> None:
        """The worker has ended as it should."""
        self._place("workers", worker).unlink(missing_ok=True)


class Watch:
    """Which workers are silent, by the steady clock of whoever watches."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[str, tuple[bytes, float]] = {}

    def is_silent(self, worker: str, heartbeat: bytes, now_s: float) -> bool:
        """Whether the heartbeat has been the same for the lease, as far as this watch has looked."""
        seen = self._seen.get(worker)
        if seen is None or seen[0] != heartbeat:
            self._seen[worker] = heartbeat, now_s
            return False
        return now_s - seen[1] >= self._lease_s


def recorded(folder: CampaignFolder) -> Mapping[str, Planned]:
    """The cells that are done, in the order of the campaign."""
    return {name: one for name, one in folder.planned.items() if folder.is_recorded(one)}
