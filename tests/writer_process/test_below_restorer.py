"""Agent, restorer and writer as three processes: whichever of them is killed or stopped, the knobs are put back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nodectl.write.lock import LockError, NodeLock, is_locked
from nodectl.writer_process.remote_writer import RemoteWriter
from nodectl.writer_process.writer_link import RESTORER, Link, WriterLostError, start_writer
from tests.waiting import PATIENCE_S, within
from tests.writer_process.tree_writer import ROOT, clock_path, limits, make_tree, writer_on

CLOCKS = [f"cpu/policy{policy}/max_khz" for policy in range(4)]
MOVED = {**dict.fromkeys(CLOCKS, 1_500_000), "rapl/package-0/long_term_uw": 90_000_000}

AGENT = """
import sys, time
from pathlib import Path
from tests.writer_process.tree_writer import writer_on
root, lock = Path(sys.argv[1]), Path(sys.argv[2])
writer = writer_on(root, lock.parent / "state", lock=lock)
writer.start()
print(writer._link.process.pid, flush=True)
while True:
    writer.apply({name: int(value) for name, value in zip(sys.argv[3::2], sys.argv[4::2])})
    time.sleep(0.05)
"""


class Node:
    """A node of files, and what runs on it."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.lock, self.save = make_tree(folder / "node"), folder / "lock", folder / "captured.jsonl"
        self.state, self.found = folder / "state", limits(self.tree)

    def writer(self, links: list[Link] | None = None) -> RemoteWriter:
        """The agent's end of a new writer below a restorer, started."""
        writer = writer_on(self.tree, self.state, links, self.lock)
        writer.start()
        return writer

    @contextlib.contextmanager
    def agent(self) -> Iterator[tuple[psutil.Process, psutil.Process, psutil.Process]]:
        """Agent, restorer and writer, with moved knobs; killed at the end."""
        words = [word for name, value in MOVED.items() for word in (name, str(value))]
        agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(self.tree), str(self.lock), *words],
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert agent.stdout
        processes = [psutil.Process(agent.pid)]
        try:
            processes.append(psutil.Process(int(agent.stdout.readline())))
            processes.append(child_of(processes[1]))
            assert within(PATIENCE_S, self.is_moved)
            yield processes[0], processes[1], processes[2]
        finally:
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            agent.wait()
            agent.stdout.close()
            assert within(PATIENCE_S, lambda: not is_locked(str(self.lock)))

    def is_moved(self) -> bool:
        return [clock_path(self.tree, policy).read_text().strip() for policy in range(4)] == ["1500000"] * 4

    def is_back(self) -> bool:
        return limits(self.tree) == self.found and not self.save.exists()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def child_of(restorer: psutil.Process) -> psutil.Process:
    """The writer below this restorer."""
    assert within(PATIENCE_S, lambda: bool(restorer.children()))
    return restorer.children()[0]


def is_gone(process: psutil.Process) -> bool:
    """Ended, whether or not somebody has waited for it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def test_an_orderly_run_below_a_restorer_leaves_every_knob_as_it_was(node: Node) -> None:
    links: list[Link] = []
    writer = node.writer(links)
    assert {outcome.status for outcome in writer.apply(MOVED)} == {"written"} and node.is_moved()
    assert is_locked(str(node.lock))
    writer.restore_all()
    writer.close()
    assert links[0].process and links[0].process.returncode == 0
    assert node.is_back() and not is_locked(str(node.lock))


def test_agent_and_writer_both_killed_leave_every_knob_as_it_was(node: Node) -> None:
    with node.agent() as (agent, _, writer):
        writer.kill()
        agent.kill()
        assert within(PATIENCE_S, node.is_back), "the restorer is left, and puts them back"
        assert within(PATIENCE_S, lambda: not is_locked(str(node.lock)))


def test_agent_and_writer_both_stopped_lose_the_knobs_and_the_writer_is_killed(node: Node) -> None:
    with node.agent() as (agent, restorer, writer):
        agent.suspend()
        writer.suspend()
        assert within(PATIENCE_S, node.is_back)
        assert within(PATIENCE_S, lambda: is_gone(writer))
        assert node.is_back(), "a writer that was killed does not go on"
        agent.resume()
        assert within(PATIENCE_S, node.is_moved), "the agent starts others and goes on"
        agent.kill()
        assert within(PATIENCE_S, node.is_back)
        assert within(PATIENCE_S, lambda: is_gone(restorer))


def test_an_agent_killed_next_to_a_stopped_writer_leaves_every_knob_as_it_was(node: Node) -> None:
    with node.agent() as (agent, _, writer):
        writer.suspend()
        agent.kill()
        assert within(PATIENCE_S, node.is_back)


def test_a_writer_that_is_killed_has_its_knobs_put_back_by_the_restorer_before_another_one_starts(node: Node) -> None:
    links: list[Link] = []
    writer = node.writer(links)
    writer.apply(MOVED)
    assert links[0].process
    os.kill(child_of(psutil.Process(links[0].process.pid)).pid, signal.SIGKILL)
    assert within(PATIENCE_S, node.is_back)
    assert {outcome.status for outcome in writer.apply(MOVED)} == {"written"}
    assert len(links) == 2 and "started again, every knob was back" in writer.notices()[0]
    writer.restore_all()
    writer.close()
    assert node.is_back()


def test_a_restorer_that_is_killed_ends_its_writer_which_puts_the_knobs_back_and_the_agent_starts_others(
    node: Node,
) -> None:
    links: list[Link] = []
    writer = node.writer(links)
    writer.apply(MOVED)
    assert links[0].process
    below = child_of(psutil.Process(links[0].process.pid))
    links[0].process.kill()
    assert within(PATIENCE_S, lambda: is_gone(below)) and node.is_back()
    assert {outcome.status for outcome in writer.apply(MOVED)} == {"written"}
    assert len(links) == 2 and "started again" in writer.notices()[0]
    writer.restore_all()
    writer.close()
    assert node.is_back()


def test_a_restorer_that_is_stopped_does_not_keep_the_node_from_the_next_one(node: Node) -> None:
    links: list[Link] = []
    writer = node.writer(links)
    writer.apply(MOVED)
    assert links[0].process
    below = child_of(psutil.Process(links[0].process.pid))
    os.kill(links[0].process.pid, signal.SIGSTOP)
    below.kill()
    assert {outcome.status for outcome in writer.apply(MOVED)} == {"written"}
    assert links[0].process.returncode == -signal.SIGKILL
    assert "started again, 5 knobs put back from the save" in writer.notices()[0]
    writer.restore_all()
    writer.close()
    assert node.is_back()


def test_all_three_killed_leave_a_save_from_which_the_next_start_puts_every_knob_back(node: Node) -> None:
    with node.agent() as (agent, restorer, writer):
        for process in (restorer, writer, agent):
            process.suspend()  # none of them has time to notice
        for process in (agent, restorer, writer):
            process.kill()
    assert node.is_moved() and node.save.exists()
    again = node.writer()
    assert node.is_back()
    again.close()


def test_a_node_that_another_process_has_locked_is_refused_in_the_restorers_words(node: Node) -> None:
    with (
        NodeLock(str(node.state / "other"), str(node.lock)),
        pytest.raises(
            LockError, match=rf"^pid {os.getpid()} already runs this node \(it has locked .*\); stop it first$"
        ),
    ):
        node.writer()


def test_a_restorer_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodectl.writer_process.writer_link.RESTORER", tmp_path / "none")
    with pytest.raises(WriterLostError, match="none: not there, or no program"):
        start_writer(str(tmp_path))
    assert os.access(RESTORER, os.X_OK)
