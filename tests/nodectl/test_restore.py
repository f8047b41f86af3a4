"""Restoring from disk after a kill: real processes, real signals, real files."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foundation.boot import boot_id
from nodectl.cli import main
from nodectl.knobs import open_knob
from nodectl.write.lock import LockError, NodeLock
from nodectl.write.restore import restore_saved, save_path
from nodectl.write.saves import read_save
from nodectl.write.writer import Writer
from tests.nodectl.file_tree import MAX_KHZ, file_node, limit_path, reopen
from tests.waiting import PATIENCE_S

NAMES = [f"cpu/policy{policy}/max_khz" for policy in range(4)]

AGENT = """
import signal, sys
from nodectl.knobs import open_knob
from nodectl.write.restore import save_path
from foundation.boot import boot_id
from nodectl.write.writer import Writer
from tests.nodectl.file_tree import RealClock, RootedFiles, reopen
root, state_dir = sys.argv[1:]
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
node = reopen(RootedFiles(root))
names = [f"cpu/policy{policy}/max_khz" for policy in range(4)]
writer = Writer([open_knob(node, name) for name in names], save_path(state_dir), boot_id(), RealClock())
with writer:
    print("running", flush=True)
    step = 0
    while True:
        step += 1
        writer.apply({name: 1_200_000 + 1000 * (step % 500) + policy for policy, name in enumerate(names)})
        if step % 50 == 0:
            print(step, flush=True)
"""


class Agent:
    """A real process that keeps moving four knobs."""

    def __init__(self, node, state_dir):
        root = Path(__file__).parents[2]
        command = [sys.executable, "-c", AGENT, str(node.files.root), str(state_dir)]
        self.process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "running\n"
        self.process.stdout.readline()

    def end(self, number):
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)
        self.process.stdout.close()


def limits(node):
    return [int(node.files.read(limit_path(policy))) for policy in range(4)]


def restored(node, state_dir, dry_run=False, boot=None):
    return restore_saved(save_path(state_dir), boot or boot_id(), lambda name: open_knob(node, name), dry_run)


@pytest.fixture
def node(tmp_path):
    return file_node(tmp_path / "node")


@pytest.fixture
def state_dir(tmp_path):
    return str(tmp_path / "state")


@pytest.fixture
def moved(node, state_dir):
    """A node whose agent is gone without having restored."""
    writer = Writer([open_knob(node, name) for name in NAMES], save_path(state_dir), boot_id(), node.clock)
    writer.start()
    writer.apply(dict.fromkeys(NAMES, 1_200_000))
    writer.close()
    return node


@pytest.mark.parametrize("delay_s", [0.0, 0.003, 0.011, 0.027])
def test_a_killed_agent_leaves_a_save_from_which_every_knob_comes_back(node, state_dir, delay_s):
    agent = Agent(node, state_dir)
    time.sleep(delay_s)  # anywhere in the loop
    agent.end(signal.SIGKILL)
    assert all(limit != MAX_KHZ for limit in limits(node))
    result = restored(node, state_dir)
    assert [outcome.status for outcome in result.outcomes] == ["restored"] * 4
    assert limits(node) == [MAX_KHZ] * 4
    assert os.listdir(state_dir) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_agent_restores_by_itself(node, state_dir, number):
    agent = Agent(node, state_dir)
    agent.end(number)
    assert limits(node) == [MAX_KHZ] * 4
    assert os.listdir(state_dir) == []


def test_restoring_again_does_nothing(moved, state_dir):
    assert len(restored(moved, state_dir).outcomes) == 4
    moved.files.log.clear()
    assert restored(moved, state_dir).outcomes == []
    assert moved.files.log == []


def test_a_dry_run_says_what_it_would_do_and_does_nothing(moved, state_dir):
    result = restored(moved, state_dir, dry_run=True)
    assert result.outcomes[0].detail == f"would go from 1200000 to {MAX_KHZ}"
    assert limits(moved) == [1_200_000] * 4
    assert len(read_save(save_path(state_dir)).knobs) == 4


def test_the_last_captured_comes_back_first(moved, state_dir):
    assert [outcome.knob for outcome in restored(moved, state_dir).outcomes] == NAMES[::-1]


def test_what_somebody_else_set_since_the_kill_is_left_to_them(moved, state_dir):
    moved.files.put(limit_path(2), 2_000_000)
    result = restored(moved, state_dir)
    assert {outcome.knob: outcome.status for outcome in result.outcomes}[NAMES[2]] == "left"
    assert limits(moved) == [MAX_KHZ, MAX_KHZ, 2_000_000, MAX_KHZ]
    assert result.is_complete and not os.path.exists(save_path(state_dir))


def test_a_save_of_another_boot_is_set_aside_and_not_applied(moved, state_dir):
    result = restored(moved, state_dir, boot="the-next-boot")
    assert limits(moved) == [1_200_000] * 4
    assert "another boot" in result.remarks[0]
    assert os.listdir(state_dir) == ["captured.jsonl.old-1"]


def test_a_knob_whose_hardware_is_gone_waits_for_the_next_attempt(moved, state_dir):
    os.rename(moved.files.root / limit_path(1)[1:], moved.files.root / "aside")
    result = restored(moved, state_dir)
    assert sorted(outcome.status for outcome in result.outcomes) == ["restored", "restored", "restored", "vanished"]
    assert not result.is_complete
    os.rename(moved.files.root / "aside", moved.files.root / limit_path(1)[1:])
    assert [outcome.status for outcome in restored(moved, state_dir).outcomes] == ["restored"]
    assert limits(moved) == [MAX_KHZ] * 4


def test_a_defect_in_one_knob_does_not_keep_the_others(moved, state_dir):
    def find(name):
        if name == NAMES[2]:
            raise RuntimeError("a bug")
        return open_knob(moved, name)

    outcomes = restore_saved(save_path(state_dir), boot_id(), find).outcomes
    assert {outcome.knob: outcome.status for outcome in outcomes} == {
        name: "refused" if name == NAMES[2] else "restored" for name in NAMES
    }


def test_the_command_restores_and_says_so(moved, state_dir, monkeypatch, capsys):
    monkeypatch.setattr("nodectl.commands.restore.system_ports", lambda: reopen(moved.files), raising=False)
    assert main(["restore", "--state-dir", state_dir, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "would go from 1200000" in said and said.split()[:3] == ["knob", "would", "be"]
    assert main(["restore", "--state-dir", state_dir, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["complete"] and [outcome["status"] for outcome in report["outcomes"]] == ["restored"] * 4
    assert limits(moved) == [MAX_KHZ] * 4
    assert main(["restore", "--state-dir", state_dir]) == 0
    assert "nothing to restore" in capsys.readouterr().out


def test_the_command_fails_when_a_knob_could_not_be_put_back(moved, state_dir, monkeypatch, capsys):
    monkeypatch.setattr("nodectl.commands.restore.system_ports", lambda: reopen(moved.files), raising=False)
    moved.files.refusals[limit_path(0)] = 16
    assert main(["restore", "--state-dir", state_dir]) == 1
    assert "busy" in capsys.readouterr().out


def test_the_command_leaves_a_running_agent_alone(node, state_dir, monkeypatch, capsys):
    monkeypatch.setattr("nodectl.commands.restore.system_ports", lambda: reopen(node.files), raising=False)
    agent = Agent(node, state_dir)
    try:
        with NodeLock(state_dir):
            assert main(["restore", "--state-dir", state_dir]) == 1
            error = capsys.readouterr().err
    finally:
        agent.end(signal.SIGKILL)
    assert str(os.getpid()) in error and error.count("\n") == 1


class SlowLeaver:
    """Time as ``nodectl.write.lock`` sees it, in which another process releases a lock after so many seconds."""

    def __init__(self, lock: NodeLock, after_s: float) -> None:
        self.now_s, self._lock, self._after_s = 0.0, lock, after_s

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds
        if self.now_s >= self._after_s:
            self._lock.release()


@pytest.mark.parametrize(("after_s", "status"), [(1.9, 0), (2.1, 1)])
def test_the_command_waits_for_a_writer_that_is_still_putting_knobs_back_for_a_lease_and_a_second(
    moved, state_dir, monkeypatch, after_s, status
):
    monkeypatch.setattr("nodectl.commands.restore.system_ports", lambda: reopen(moved.files))
    with NodeLock(state_dir) as writer:
        monkeypatch.setattr("nodectl.write.lock.time", SlowLeaver(writer, after_s))
        assert main(["restore", "--state-dir", state_dir]) == status
    assert (limits(moved) == [MAX_KHZ] * 4) == (status == 0)


def test_one_agent_per_node_and_the_message_names_the_other(tmp_path):
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from nodectl.write.lock import NodeLock; NodeLock(sys.argv[1]).acquire();"
            "print('held', flush=True); time.sleep(60)",
            str(tmp_path),
        ],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
    )
    holder.stdout.readline()
    with pytest.raises(LockError, match=f"pid {holder.pid} "):
        NodeLock(str(tmp_path)).acquire()
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with NodeLock(str(tmp_path)):  # the kernel dropped it with its holder
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_who_may_not_look_for_a_save_gets_that_error_and_not_that_there_is_none(moved, state_dir, tmp_path, capsys):
    assert main(["restore", "--state-dir", str(tmp_path / "none")]) == 0  # and all modules are loaded now
    capsys.readouterr()
    tmp_path.chmod(0o755)
    os.seteuid(65534)
    try:
        status = main(["restore", "--state-dir", state_dir])
    finally:
        os.seteuid(0)
    shown = capsys.readouterr()
    assert (status, shown.out) == (1, "")
    assert shown.err.startswith(f"nodectl restore: {state_dir}/captured.jsonl: cannot look for")
    assert shown.err.endswith("Permission denied\n") and shown.err.count("\n") == 1


def test_the_command_takes_the_nodes_lock_too(moved, state_dir, tmp_path, monkeypatch, capsys):
    locked = dataclasses.replace(reopen(moved.files), lock_path=str(tmp_path / "run" / "lock"))
    monkeypatch.setattr("nodectl.commands.restore.system_ports", lambda: locked)
    with NodeLock(str(tmp_path / "another"), locked.lock_path):
        assert main(["restore", "--state-dir", state_dir]) == 1
    assert f"pid {os.getpid()} already runs this node" in capsys.readouterr().err
    assert main(["restore", "--state-dir", state_dir]) == 0
    assert limits(moved) == [MAX_KHZ] * 4
