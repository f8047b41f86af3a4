"""``nodectl-restorer run -- PROGRAM``: the parent of the program that writes outlives it and puts its knobs back."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from nodectl.build_restorer import build
from nodectl.write.lock import is_locked
from tests.nodectl.file_tree import MAX_KHZ, file_node, limit_path
from tests.waiting import PATIENCE_S, within

ROOT = Path(__file__).parents[2]

WRITER = """
import os, signal, sys, time
from nodectl.knobs import open_knob
from nodectl.write.lock import NodeLock
from nodectl.write.places import save_places
from nodectl.write.saves import node_id
from nodectl.write.writer import Writer
from tests.nodectl.file_tree import RealClock, RootedFiles, reopen
root, lock, lease_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
node, taken = reopen(RootedFiles(root)), NodeLock(os.path.dirname(lock) + "/state", lock)
taken.acquire()
names = [f"cpu/policy{policy}/max_khz" for policy in range(2)]
knobs = [open_knob(node, name) for name in names]
writer = Writer(knobs, save_places("/nowhere", lock), node_id(lock), RealClock(), taken.is_current)
writer.start()
print(os.getpid(), flush=True)
if lease_s:
    taken.renew(lease_s)
for step in range(10**9):
    outcomes = writer.apply({name: 1_200_000 + 1000 * (step % 500) for name in names})
    if outcomes[0].status == "refused":
        print("refused", flush=True)
        time.sleep(0.02)
"""


SHELL = ("sh", "-c", '"$@" & wait', "sh")
"""A parent that can be killed."""


@pytest.fixture(scope="module")
def restorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("restorer") / "nodectl-restorer")


def assert_comes(holds: Callable[[], bool], what: str) -> None:
    assert within(PATIENCE_S, holds), f"did not come: {what}"


class Supervised:
    """A writer that moves two clocks of a node of files, below its restorer."""

    def __init__(
        self,
        restorer: Path,
        folder: Path,
        lease_s: float = 0.0,
        stopped_s: float = 0.3,
        starter: tuple[str, ...] = (),
        is_run: bool = False,
    ) -> None:
        """``starter``: what starts the restorer; then this is ``process``. ``is_run``: it reads refusals."""
        self.node = file_node(folder / "node", policies=2)
        self.lock, self.save, self.output = folder / "lock", folder / "captured.jsonl", folder / "said"
        where = ["--lock", str(self.lock), "--root", str(self.node.files.root), "--lease", str(stopped_s)]
        writer = [sys.executable, "-c", WRITER, str(self.node.files.root), str(self.lock), str(lease_s)]
        if starter:
            where.append("--kill-stopped")
        reads, said = os.pipe()
        if is_run:
            where += ["--refusal-fd", str(said)]
        self.process = subprocess.Popen(
            [*starter, restorer, "run", *where, "--", *writer],
            cwd=ROOT, stdout=self.output.open("w"), stderr=subprocess.PIPE, text=True, pass_fds=[said],
        )  # fmt: skip
        os.close(reads)
        os.close(said)
        assert_comes(lambda: "\n" in self.said, "the writer's number")
        self.writer = int(self.said.split()[0])
        if not lease_s:
            assert_comes(lambda: max(self.khz) < MAX_KHZ, "the clocks are lowered")

    @property
    def said(self) -> str:
        """What the writer has printed."""
        return self.output.read_text()

    def assert_is_refused(self) -> None:
        """Wait until the writer is refused three times from now on."""
        before = self.said.count("refused")
        assert_comes(lambda: self.said.count("refused") >= before + 3, "the writer is refused")

    @property
    def khz(self) -> list[int]:
        texts = [self.node.files.read(limit_path(policy)) for policy in range(2)]
        return [int(text or 0) for text in texts]  # empty: it is being written

    def assert_moves(self) -> None:
        """Wait until it moves the clocks, on and on."""
        seen = self.khz
        assert_comes(lambda: self.khz != seen, "it moves the clocks")

    def is_back(self) -> bool:
        return self.khz == [MAX_KHZ] * 2 and not self.save.exists()

    def end(self) -> None:
        for pid in (self.writer, self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.communicate()


@pytest.fixture
def supervised(restorer: Path, tmp_path: Path) -> Iterator[Supervised]:
    one = Supervised(restorer, tmp_path)
    yield one
    one.end()


def test_a_killed_writer_leaves_every_knob_as_it_was(supervised: Supervised) -> None:
    os.kill(supervised.writer, signal.SIGKILL)
    err = supervised.process.communicate(timeout=PATIENCE_S)[1]
    assert supervised.process.returncode == 128 + signal.SIGKILL
    assert supervised.is_back() and not is_locked(str(supervised.lock))
    assert len(supervised.said.split()) == 1 and err.endswith("2 knobs restored\n"), "the output is the program's"


def test_a_writer_that_is_stopped_for_longer_than_its_lease_loses_the_node_and_writes_nothing_any_more(
    supervised: Supervised,
) -> None:
    os.kill(supervised.writer, signal.SIGSTOP)
    assert_comes(supervised.is_back, "the knobs are put back")
    assert is_locked(str(supervised.lock)), "the restorer has it as long as the program is there"
    os.kill(supervised.writer, signal.SIGCONT)
    supervised.assert_is_refused()
    assert_comes(supervised.is_back, "what the writer had begun when it was stopped is put back too")
    supervised.assert_is_refused()
    assert supervised.is_back()


class _Writes:
    """Which of some files is closed after writing, in order (inotify)."""

    CLOSED_AFTER_WRITING, SIZE = 0x8, struct.Struct("iIII")

    def __init__(self, paths: list[Path]) -> None:
        libc = ctypes.CDLL(None)
        self._events = libc.inotify_init1(os.O_NONBLOCK)
        added = [libc.inotify_add_watch(self._events, os.fsencode(path), self.CLOSED_AFTER_WRITING) for path in paths]
        self._number = {watch: number for number, watch in enumerate(added)}

    def so_far(self) -> list[int]:
        """The numbers of the files, since the last call."""
        try:
            data = os.read(self._events, 1 << 16)
        except BlockingIOError:
            return []
        return [self._number[watch] for watch, *_ in self.SIZE.iter_unpack(data)]

    def close(self) -> None:
        os.close(self._events)


def test_what_a_stopped_writer_has_begun_is_put_back_in_the_reverse_order_too(supervised: Supervised) -> None:
    """A knob that was captured later may be one that an earlier one needs."""
    os.kill(supervised.writer, signal.SIGSTOP)
    assert within(PATIENCE_S, lambda: all(MAX_KHZ > khz > 0 for khz in supervised.khz))
    ours = supervised.khz
    assert_comes(supervised.is_back, "the knobs are put back")
    files, restorer = supervised.node.files, psutil.Process(supervised.process.pid)
    restorer.suspend()  # it looks again by itself: between two of these writes it would find only one
    assert within(PATIENCE_S, lambda: restorer.status() == psutil.STATUS_STOPPED)
    for policy, khz in enumerate(ours):  # as a write that was in flight would leave them
        files.put(limit_path(policy), khz)
    writes = _Writes([Path(str(files.root) + limit_path(policy)) for policy in range(2)])
    try:
        restorer.resume()
        os.kill(supervised.writer, signal.SIGCONT)
        assert_comes(lambda: supervised.khz == [MAX_KHZ] * 2, "they are put back again")
        supervised.assert_is_refused()
        order = writes.so_far()
        assert [1, 0] in [order[at : at + 2] for at in range(len(order))], f"in the order {order}"
    finally:
        writes.close()


def test_a_write_in_flight_that_ends_late_on_a_busy_machine_is_put_back_too(supervised: Supervised) -> None:
    os.kill(supervised.writer, signal.SIGSTOP)
    assert within(PATIENCE_S, lambda: all(MAX_KHZ > khz > 0 for khz in supervised.khz))
    ours = supervised.khz
    assert_comes(supervised.is_back, "the knobs are put back")
    os.kill(supervised.writer, signal.SIGCONT)
    supervised.assert_is_refused()
    time.sleep(0.6)  # the first look after it went on is over
    supervised.node.files.put(limit_path(1), ours[1])
    assert_comes(lambda: supervised.khz == [MAX_KHZ] * 2, "it is put back again")


def test_a_writer_that_is_stopped_for_a_moment_goes_on(restorer: Path, tmp_path: Path) -> None:
    supervised = Supervised(restorer, tmp_path, stopped_s=600)
    try:
        os.kill(supervised.writer, signal.SIGSTOP)
        os.kill(supervised.writer, signal.SIGCONT)
        seen = supervised.khz
        assert_comes(lambda: supervised.khz != seen, "it moves the clocks again")
        os.kill(supervised.process.pid, signal.SIGTERM)
        assert supervised.process.wait(PATIENCE_S) == 128 + signal.SIGTERM, "the signal is passed on"
        assert supervised.is_back()
    finally:
        supervised.end()


def test_a_writer_that_does_not_renew_its_lease_loses_the_node(restorer: Path, tmp_path: Path) -> None:
    supervised = Supervised(restorer, tmp_path, lease_s=1.5)
    try:
        supervised.assert_is_refused()
        assert_comes(supervised.is_back, "the knobs are put back")
    finally:
        supervised.end()


def test_a_program_that_claims_the_node_and_hangs_is_killed_and_leaves_every_knob_as_it_was(
    restorer: Path, tmp_path: Path
) -> None:
    supervised = Supervised(restorer, tmp_path, lease_s=1.5, stopped_s=600, starter=SHELL)
    try:
        assert_comes(lambda: not is_locked(str(supervised.lock)), "writer and restorer have ended")
        assert supervised.is_back() and not Path(f"/proc/{supervised.writer}").exists()
        error = supervised.process.communicate(timeout=PATIENCE_S)[1]
        assert "the program has not renewed its lease: it is killed" in error
    finally:
        supervised.end()


def test_a_writer_that_hangs_when_its_agent_is_gone_is_killed_and_leaves_every_knob_as_it_was(
    restorer: Path, tmp_path: Path
) -> None:
    supervised = Supervised(restorer, tmp_path, stopped_s=0.05, starter=SHELL, is_run=True)
    try:
        supervised.assert_moves()
        supervised.process.kill()
        assert_comes(lambda: not is_locked(str(supervised.lock)), "writer and restorer have ended")
        assert supervised.is_back() and not Path(f"/proc/{supervised.writer}").exists()
        error = supervised.process.communicate(timeout=PATIENCE_S)[1]
        assert "the run is gone, and the program has not ended: it is killed" in error
    finally:
        supervised.end()


def test_a_program_whose_shell_is_gone_goes_on(restorer: Path, tmp_path: Path) -> None:
    supervised = Supervised(restorer, tmp_path, stopped_s=0.05, starter=SHELL)
    try:
        supervised.process.kill()
        time.sleep(1.5)
        supervised.assert_moves()
    finally:
        supervised.end()


def test_when_the_restorer_itself_is_killed_its_program_ends_and_the_next_restore_finds_the_save(
    restorer: Path, supervised: Supervised
) -> None:
    supervised.process.kill()
    assert_comes(lambda: not is_locked(str(supervised.lock)), "the writer has ended too")
    where = ("--lock", str(supervised.lock), "--root", str(supervised.node.files.root))
    done = subprocess.run([restorer, "restore", *where], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert supervised.is_back()


def test_all_killed_in_the_middle_of_a_restore_the_next_one_finishes_it(restorer: Path, tmp_path: Path) -> None:
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        supervised = Supervised(restorer, folder)
        try:
            os.kill(supervised.writer, signal.SIGKILL)
            time.sleep(number * 0.0005)
        finally:
            supervised.end()
        where = ("--lock", str(supervised.lock), "--root", str(supervised.node.files.root))
        done = subprocess.run([restorer, "restore", *where], capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0 and supervised.is_back(), done.stdout + done.stderr


def test_a_programs_exit_status_is_the_restorers(restorer: Path, tmp_path: Path) -> None:
    def status(*program: str) -> int:
        command = [restorer, "run", "--lock", tmp_path / "lock", "--", *program]
        return subprocess.run(command, capture_output=True, timeout=PATIENCE_S).returncode

    assert status("true") == 0
    assert status("sh", "-c", "exit 7") == 7
    assert status(str(tmp_path / "none")) == 127
    assert status(str(tmp_path)) == 126
