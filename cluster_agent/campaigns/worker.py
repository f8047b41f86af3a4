"""A worker of a campaign: claims one cell after the other, and keeps the logs that it has read.

python -m cluster_agent.campaigns.worker DIR PID     ends with the process PID that has started it
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from cluster_agent.campaigns.campaign_folder import DONE, CampaignFolder, Claim, Watch
from cluster_agent.campaigns.campaign_grid import Cell, code_sha256
from cluster_agent.errors import ClusterError
from cluster_agent.library.given import World
from cluster_agent.library.replaying import replay
from cluster_agent.library.results import Result
from foundation.shell.plain_text import echo

MOST_LOGS: Final = 4
"""Ours: so many logs stay in memory; a campaign's cells are in the order of their logs."""
BEATS: Final = 8
"""Ours: heartbeats in a lease."""
SHORT_S: Final = 0.01
"""Ours: the first pause where no cell waits; each is twice the last, up to a heartbeat."""


def name_of_worker(process: int | None = None) -> str:
    """Unlike those of all other workers; that of a process of this machine begins alike."""
    host = "".join(c if c.isalnum() else "-" for c in socket.gethostname())[:40]
    return f"{host}-{os.getpid() if process is None else process}-{os.urandom(3).hex() if process is None else ''}"


class Heartbeat:
    """Shows from a thread of its own that this worker lives, for as long as a ``with`` lasts.

    ``parent``: the process whose end is the worker's, too.
    """

    def __init__(self, folder: CampaignFolder, worker: str, parent: int | None = None) -> None:
        self._folder, self._worker, self._parent = folder, worker, parent
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._folder.beat(self._worker, 0)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        with suppress(OSError):  # a heartbeat that stays is silent after the lease
            self._folder.leave(self._worker)

    def _run(self) -> None:
        count = 0
        while not self._ends.wait(self._folder.lease_s / BEATS):
            count += 1
            if self._parent is not None and os.getppid() != self._parent:
                signal.raise_signal(signal.SIGTERM)
                return
            try:
                self._folder.beat(self._worker, count)
            except OSError:
                continue  # a folder that is away: it may come back within the lease


class Replays:
    """Replays cells. A log is read once, and a file hashed again only if it was written to."""

    def __init__(self) -> None:
        self._worlds: OrderedDict[tuple[str, str], World] = OrderedDict()
        self._hashed: dict[str, tuple[tuple[int, ...], str]] = {}

    def replayed(self, cell: Cell) -> Result:
        """The cell's result; ``ClusterError`` for one that cannot be, or whose files are not as they were."""
        self._check(cell)
        options = cell.options
        policy = options.pop("policy")
        seed = int(options.pop("seed", "0"))
        trace = cell.arguments[1]
        world = World(trace, **options, seed=seed)  # type: ignore[arg-type]  # all others are texts
        key = (trace, cell.sha256[trace])
        if key in self._worlds:
            world.take_jobs_of(self._worlds[key])
        result = replay(world, policy, say=_say_nothing)
        self._check(cell)  # what was read is what was hashed
        self._worlds[key] = world
        self._worlds.move_to_end(key)
        if len(self._worlds) > MOST_LOGS:
            self._worlds.popitem(last=False)
        return result

    def _check(self, cell: Cell) -> None:
        for file, sha256 in cell.sha256.items():
            if file != "policy" and self._sha256(file) != sha256:
                raise ClusterError(f"{file}: it has changed since the campaign was started; start it again")

    def _sha256(self, file: str) -> str:
        try:
            at = os.stat(file)
            signature = (at.st_mtime_ns, at.st_size, at.st_ino, at.st_dev)
            if file not in self._hashed or self._hashed[file][0] != signature:
                self._hashed[file] = signature, hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except OSError as error:
            raise ClusterError(f"{file}: {error.strerror}; it was there when the campaign was started") from None
        return self._hashed[file][1]


def _say_nothing(_: str) -> None:
    """What was found on the way is in the manifest."""


class Worker:
    """Works on a campaign until all its cells are recorded or have failed, whoever runs them."""

    def __init__(self, folder: CampaignFolder, parent: int | None = None) -> None:
        self.folder, self.name = folder, name_of_worker()
        self.recorded = self.lost = self.failed = 0
        self._parent = parent
        self._replays, self._watch, self._claims = Replays(), Watch(folder.lease_s), 0
        self._here = os.getcwd()

    def run(self, progress: Callable[[], None] = lambda: None) -> None:
        """Until nothing is left; ``progress`` is called after each cell of one's own. ``KeyboardInterrupt`` and an
        ``OSError`` of the folder come through, and the cell at hand waits again."""
        self._check_code()
        with Heartbeat(self.folder, self.name, self._parent):
            try:
                self._work(progress)
            except BaseException:
                self.folder.give_back(self.name)
                raise
            finally:
                os.chdir(self._here)

    def _work(self, progress: Callable[[], None]) -> None:
        pause_s = SHORT_S
        while not self._is_over():
            claim = self.folder.claim(self.name, self._claims)
            if claim is None:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, self.folder.lease_s / BEATS)
                continue
            pause_s = SHORT_S
            self._claims += 1
            self._one(claim)
            progress()

    def _check_code(self) -> None:
        ours = code_sha256()
        for one in self.folder.planned.values():
            if one.cell.code != ours and not (self.folder.root / one.name).exists():
                raise ClusterError(
                    f"{self.folder.root}: the code here ({ours[:8]}) is not that of the campaign ({one.cell.code[:8]});"
                    " install the same version"
                )

    def _one(self, claim: Claim) -> None:
        cell = claim.planned.cell
        try:
            os.chdir(claim.planned.directory)
            result = self._replays.replayed(cell)
        except (ClusterError, MemoryError) as error:
            self._fail(claim, str(error) or "not enough memory")
        except OSError as error:
            self._fail(claim, f"{error.filename or claim.planned.directory}: {error.strerror}")
        except Exception as error:  # a policy of somebody's own may raise anything: that ends its cell alone
            self._fail(claim, f"{type(error).__name__}: {error}")
        else:
            self._record(claim, result)

    def _record(self, claim: Claim, result: Result) -> None:
        cell, target = claim.planned.cell, str(self.folder.root / claim.planned.name)
        try:
            result.write_into(claim.path, ["clusterctl", *cell.arguments, "--out", target])
            (claim.path / DONE).write_bytes(msgspec.json.encode(cell))
        except OSError:
            if claim.path.exists():
                raise
            self.lost += 1  # while this worker was silent
            return
        if self.folder.record(claim):
            self.recorded += 1
        else:
            self.lost += 1

    def _fail(self, claim: Claim, why: str) -> None:
        self.failed += 1
        self.folder.fail(claim, f"clusterctl replay: {why}")

    def _is_over(self) -> bool:
        """Looks after the others' claims if no cell waits."""
        folder = self.folder
        if folder.has_waiting():
            return False
        running = folder.claims()
        for claim, worker in running:
            if self._watch.is_silent(worker, folder.heartbeat(worker), time.monotonic()):
                folder.take(claim)
        return not running and not folder.issue(folder.planned)


@contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """SIGTERM, as a job manager sends it, ends this process as Ctrl-C does; a second signal changes nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> Any:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def worker_command(directory: str | Path) -> list[str]:
    """What starts a worker below this process."""
    return [sys.executable, "-m", "cluster_agent.campaigns.worker", str(directory), str(os.getpid())]


def opened(directory: str) -> CampaignFolder:
    """The folder of a campaign that was started; ``ClusterError`` if there is none."""
    folder = CampaignFolder(directory)
    if folder.is_there:
        folder.read_plan()
    if not folder.parts:
        raise ClusterError(f"{directory}: no campaign was started here; `clusterctl campaign FILE --out {directory}`")
    return folder


def no_folder(directory: str | Path, error: OSError) -> ClusterError:
    """What a folder that is full, or away, ends a campaign with."""
    if Path(directory).is_file():
        return ClusterError(f"{directory}: it is a file; choose another --out")
    why = os.strerror(error.errno) if error.errno else str(error)  # Arrow's own words are longer
    return ClusterError(f"{directory}: {why}; what is recorded stays, and the same command goes on from there")


def main(directory: str, parent: int) -> int:
    """One worker below the process ``parent``; its exit status."""
    try:
        with ends_on_sigterm():
            Worker(opened(directory), parent).run()
    except ClusterError as error:
        echo(str(error), to_stderr=True)
        return error.exit_status
    except OSError as error:
        echo(str(no_folder(directory, error)), to_stderr=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
