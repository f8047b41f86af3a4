"""A task manager as a process: it finds nodes for one job without a head, and stays until the job is over.

What it must not forget is in a file of its user before it is sent: if the process ends, ``clusterctl submit --dispatch
dardis --resume JOB`` goes on from there. A job that a lead has runs in any case. ``clusterctl cancel JOB`` puts another
file next to it: whoever is the task manager finds it there, and ends the job where it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

from cluster_agent.dispatch import messages as m
from cluster_agent.dispatch import task_manager
from cluster_agent.dispatch.fitting_index import Need
from cluster_agent.dispatch.live.dispatch_frames import TO_TASKS, Program, fits_window, frame_of, read_frame
from cluster_agent.dispatch.live.manager_links import dealer, key_of
from cluster_agent.dispatch.live.partition_file import NodesFile, read_nodes
from cluster_agent.dispatch.task_manager import Setup, TaskState
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.fabric.allowed import Allowed
from foundation.planted_links import write_durably
from foundation.wire.dispatch_messages import FIRST_JOB, LAST_JOB
from foundation.wire.job_messages import HOOK_S
from foundation.wire.keys import KeyPair, read_pair
from foundation.wire.power_messages import WireError

SETUP: Final = Setup("first", "earliest", asks=4, backfills=True)
"""Throughput (docs/dardis.md): the earliest start; a planned job moves forward when another one ends early."""
LEAST_SLOTS: Final = 30
"""Ours: the first window has at least so many starts."""
PRESENCE_S: Final = 2.0
"""Ours: how often the lead is shown where its task manager is."""
LINGER_MS: Final = 1000
LOOK_S: Final = 0.2
"""Ours: how often ``clusterctl cancel`` looks whether another task manager has ended the job."""


class Kept(msgspec.Struct, frozen=True):
    """A job's file."""

    state: TaskState
    program: Program
    directory: str
    key: str


def new_job(nodes: NodesFile, program: Program, units: int, watts: float, seed: int, now_us: int) -> TaskState:
    """``WrongUseError`` for more units than there are nodes. ``watts``: of a node, that the job cannot do without."""
    if units > len(nodes.nodes):
        raise WrongUseError(f"--nodes {units}: {len(nodes.nodes)} nodes dispatch here")
    job = FIRST_JOB + (seed + now_us) % (LAST_JOB - FIRST_JOB)
    hooks_s = HOOK_S * (bool(program.prolog) + bool(program.epilog))
    length = math.ceil((program.walltime_s + hooks_s) / nodes.slot_s)
    return TaskState(
        job, units, Need(1, round(1000 * watts)), length, max(LEAST_SLOTS, length), len(nodes.nodes), SETUP,
        nodes.rules, seed % (1 << 31),
    )  # fmt: skip


class LivesError(WrongUseError):
    """Another process is the task manager of this job."""


class JobFile:
    """``path``; locked for as long as its task manager lives. ``LivesError`` if another one has it."""

    def __init__(self, path: Path) -> None:
        self._path, self._cancelled = path, path.with_suffix(".cancel")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ClusterError(f"{path}: cannot keep the job: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise LivesError(f"job {path.stem}: its task manager lives") from None

    @property
    def is_cancelled(self) -> bool:
        """Whether its user wants it to end."""
        return self._cancelled.exists()

    def read(self) -> Kept:
        """What was kept."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Kept)
        except FileNotFoundError:
            raise WrongUseError(_not_there(self._path)) from None
        except (OSError, msgspec.MsgspecError) as error:
            raise ClusterError(f"{self._path}: cannot read the job: {error}") from None

    def write(self, kept: Kept) -> None:
        """On return it is on the disk."""
        try:
            write_durably(self._path, msgspec.json.encode(kept))
        except OSError as error:
            raise ClusterError(f"{self._path}: cannot keep the job: {error.strerror}: it goes no further") from None

    def close(self, is_over: bool) -> None:
        """Let go of it; nothing is left of a job that ``is_over``."""
        if is_over:
            for path in (self._path, self._cancelled, self._path.with_suffix(".lock")):
                path.unlink(missing_ok=True)
        os.close(self._lock)


def _not_there(path: Path) -> str:
    return f"job {path.stem}: {path} is not there: it is over, or another's"


class Submission:
    """One job, whose file is ``file``. ``say`` gets a line for each thing that happens to it."""

    def __init__(
        self, kept: Kept, file: JobFile, say: Callable[[str], None],
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:  # fmt: skip
        directory = Path(kept.directory)
        self._kept, self._file, self._say, self._clock_us = kept, file, say, clock_us
        self._nodes, self._allowed = read_nodes(directory), Allowed(directory)
        self._allowed.refresh()
        self._keys: KeyPair = read_pair(Path(kept.key))
        self._state = kept.state
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._dealers: dict[int, zmq.Socket[bytes]] = {}
        self._later: list[tuple[int, int, m.Due]] = []
        self._count = 0
        self._said: str | None = None
        self._placed: tuple[int, int, tuple[m.Address, ...]] | None = None
        self._shown_s = self._moved_s = 0.0
        self._end: m.Ended | None = None
        self._no_record = ""
        self._interrupted = 0

    def run(self, is_resumed: bool = False) -> int:
        """The exit status: 0 if the job ran well, 1 if it did not, 130 where this process was to end before."""
        before = {number: signal.signal(number, self._note_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            first = task_manager.resume if is_resumed else task_manager.begin
            self._carry_out(*first(self._state, self._clock_us()))
            while self._state.phase != "over" and not self._interrupted and not self._no_record:
                self._turn()
            return self._finish()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for one in self._dealers.values():
                one.close(LINGER_MS)
            self._context.term()

    def _note_signal(self, number: int, frame: Any) -> None:
        self._interrupted = number

    @property
    def is_known(self) -> bool:
        """After ``run``: whether it is known what became of the job."""
        return not self._no_record

    def _turn(self) -> None:
        if self._state.phase != "cancel" and self._file.is_cancelled:
            self._carry_out(*task_manager.cancel(self._state, self._clock_us()))
            return
        now_us = self._clock_us()
        due_s = (self._later[0][0] - now_us) / 1e6 if self._later else PRESENCE_S
        for ready, _ in self._poller.poll(round(1000 * min(max(due_s, 0.0), 0.5))):
            node = next(number for number, one in self._dealers.items() if one is ready)
            for message in self._received(node):
                self._take(node, message)
        while self._later and self._later[0][0] <= self._clock_us():
            due = heappop(self._later)[2]
            self._carry_out(*task_manager.step(self._state, due, self._clock_us()))
        if self._state.phase == "placed" and time.monotonic() - self._shown_s > PRESENCE_S:
            self._shown_s = time.monotonic()
            self._carry_out(self._state, task_manager.presence(self._state))
        if self._state.phase == "placed" and time.monotonic() - self._moved_s > self._nodes.pause_s:
            self._moved_s = time.monotonic()  # a hint may be lost, or come before the job was placed
            move = m.Due(self._state.job, self._state.attempt, "move")
            self._carry_out(*task_manager.step(self._state, move, self._clock_us()))

    def _received(self, node: int) -> Iterator[m.Message]:
        with contextlib.suppress(zmq.Again):
            while True:
                frame = self._dealers[node].recv(zmq.NOBLOCK)
                try:
                    message, _ = read_frame(frame)
                except WireError as error:
                    self._note(f"{self._name(node)}: dropped: {error}")
                    continue
                yield message

    def _take(self, node: int, message: m.Message) -> None:
        if not isinstance(message, TO_TASKS) or message.job != self._state.job:
            return
        if getattr(message, "node", node) != node:
            self._note(f"{self._name(node)} calls itself node {message.node}: the lists of nodes differ")  # type: ignore[union-attr]
            return
        is_current = isinstance(message, m.Candidates) and message.attempt == self._state.attempt
        if is_current and not fits_window(message, self._state.window):  # type: ignore[arg-type]
            self._note(f"{self._name(node)} offers starts that were not requested: it is left out")
            return
        if isinstance(message, m.Ended):
            self._end = message
        placed = self._state.placed
        if isinstance(message, m.Refused) and message.start and placed and message.attempt == placed[0]:
            self._no_record = f"{self._name(node)} has no record of it any more: whether it ran is not known"
        self._carry_out(*task_manager.step(self._state, message, self._clock_us()))

    def _carry_out(self, state: TaskState, orders: list[m.Order]) -> None:
        """The state is on the disk before anything is sent that follows from it."""
        if (state.attempt, state.phase, state.placed) != (self._state.attempt, self._state.phase, self._state.placed):
            self._file.write(msgspec.structs.replace(self._kept, state=state))
        self._state = state
        for order in orders:
            if isinstance(order, m.Send):
                program = self._kept.program if isinstance(order.message, m.Confirm) else None
                self._send(order.to, frame_of(order.message, program))
            elif isinstance(order, m.Later):
                self._count += 1
                heappush(self._later, (order.at_us, self._count, order.message))
            elif isinstance(order, m.Note):
                self._note(order.text)
        if state.placed is not None and state.placed != self._placed:
            self._placed = state.placed
            at = time.strftime("%H:%M:%S", time.localtime(state.placed[1] * state.rules.slot_us / 1e6))
            self._say(f"job {state.job}: starts at {at} on {', '.join(map(self._name, state.placed[2]))}")
        elif state.placed is None:
            self._placed = None

    def _send(self, node: int, frame: bytes) -> None:
        if node not in self._dealers:
            public = key_of(self._allowed, self._name(node))
            if not public:
                self._note(f"{self._name(node)}: no key of it is allowed in {self._allowed.path}")
                return
            self._dealers[node] = made = dealer(self._context, self._nodes.nodes[node].url, self._keys, public)
            self._poller.register(made, zmq.POLLIN)
        with contextlib.suppress(zmq.ZMQError):
            self._dealers[node].send(frame, zmq.NOBLOCK)

    def _name(self, node: int) -> str:
        return self._nodes.nodes[node].name if 0 <= node < len(self._nodes.nodes) else f"node {node}"

    def _note(self, line: str) -> None:
        """Not the same line again and again."""
        if line != self._said:
            self._said = line
            self._say(line)

    def _finish(self) -> int:
        job, state, end, is_cancelled = self._state.job, self._state, self._end, self._file.is_cancelled
        is_with_lead = state.phase in ("start", "cancel") or state.placed is not None
        if self._no_record:
            self._say(f"job {job}: {self._no_record}")
        elif self._interrupted and state.phase != "over":
            if is_with_lead:
                self._file.close(is_over=False)
                goes_on = f"it runs without this command; `--resume {job}` waits for its end"
                not_yet = f"its node has not answered that it ends: `clusterctl cancel {job}` goes on"
                self._say(f"job {job}: {not_yet if state.phase == 'cancel' else goes_on}")
                return 130
            self._carry_out(*task_manager.cancel(state, self._clock_us()))
            self._say(f"job {job}: it is not run")
            self._file.close(is_over=True)
            return 130
        self._file.close(is_over=True)
        if end is None:
            if is_cancelled and not self._no_record:
                self._say(f"job {job}: {m.CANCELLED} before it began")
            return 1
        how = "done" if end.result == "done" and not end.why else f"failed: {end.why or end.result}"
        how = end.why if end.why.startswith(m.CANCELLED) else how
        self._say(f"job {job}: {how}")
        return 0 if how == "done" else 1


def files_of(user_home: Path) -> Path:
    """The directory of the files of a user's jobs."""
    return Path(os.environ.get("XDG_STATE_HOME") or user_home / ".local" / "state") / "clusterctl" / "dispatch"


def submitted(
    program: Program, units: int, watts: float, directory: Path, key: Path, files: Path, say: Callable[[str], None]
) -> int:
    """Dispatch a new job; the exit status of ``Submission.run``."""
    seed = int.from_bytes(os.urandom(6), "little")
    state = new_job(read_nodes(directory), program, units, watts, seed, time.time_ns() // 1000)
    file = JobFile(files / f"{state.job}.json")
    kept = Kept(state, program, str(directory), str(key))
    try:
        made = Submission(kept, file, say)
        file.write(kept)  # whoever reads the number can cancel the job
    except BaseException:
        file.close(is_over=True)
        raise
    say(f"job {state.job}")
    return made.run()


def cancelled(jobs: Sequence[int], files: Path, say: Callable[[str], None]) -> int:
    """End these jobs of this user, each by its task manager, or in place of one that has ended; 0 once all are over,
    130 where this process was to end before."""
    paths = [files / f"{job}.json" for job in jobs]
    for path in paths:
        if not path.exists():
            raise WrongUseError(_not_there(path))
        try:
            path.with_suffix(".cancel").touch(0o600)
        except OSError as error:
            raise ClusterError(f"{path}: cannot cancel the job: {error.strerror}") from None
    return max(_cancelled(path, say) for path in paths)


def _cancelled(path: Path, say: Callable[[str], None]) -> int:
    while path.exists():
        try:
            file = JobFile(path)
        except LivesError:
            time.sleep(LOOK_S)
            continue
        if not path.exists():  # it was over in this moment
            file.close(is_over=True)
            break
        made = Submission(file.read(), file, say)
        status = made.run(is_resumed=True)
        return status if status not in (0, 1) else int(not made.is_known)
    path.with_suffix(".cancel").unlink(missing_ok=True)  # it may have been over before this was written
    say(f"job {path.stem}: it is over")
    return 0


def resumed(job: int, files: Path, say: Callable[[str], None]) -> int:
    """Go on with a job whose task manager ended."""
    file = JobFile(files / f"{job}.json")
    try:
        kept = file.read()
    except BaseException:
        file.close(is_over=not (files / f"{job}.json").exists())
        raise
    return Submission(kept, file, say).run(is_resumed=True)
