"""One agent per node and one writer per state directory: real locks, real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodectl.write.lock import FileLock, LockError, NodeLock, is_locked, lock_path
from pmu.system import node_lock_path, system_ports
from tests.nodectl.file_tree import file_node
from tests.open_files import n_open
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

HOLD = """
import sys, time
from nodectl.write.lock import NodeLock
NodeLock(sys.argv[1], sys.argv[2]).acquire()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def node(tmp_path):
    return str(tmp_path / "run" / "lock")


def state(tmp_path, name):
    return str(tmp_path / name)


def test_agents_with_state_directories_of_their_own_still_share_one_node(tmp_path, node):
    command = [sys.executable, "-c", HOLD, state(tmp_path, "a"), node]
    holder = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)
    holder.stdout.readline()
    with pytest.raises(LockError) as refused:
        NodeLock(state(tmp_path, "b"), node).acquire()
    assert str(refused.value) == f"pid {holder.pid} already runs this node (it has locked {node}); stop it first"
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with NodeLock(state(tmp_path, "b"), node):  # the kernel dropped it with its holder
        pass


def test_a_refused_agent_locks_nothing_and_leaks_no_descriptor(tmp_path, node):
    before = n_open()
    with NodeLock(state(tmp_path, "a"), node), pytest.raises(LockError):
        NodeLock(state(tmp_path, "b"), node).acquire()
    with NodeLock(state(tmp_path, "a")), pytest.raises(LockError):
        NodeLock(state(tmp_path, "a"), node).acquire()
    assert not is_locked(node) and not is_locked(lock_path(state(tmp_path, "b")))
    assert n_open() == before


def test_looking_whether_a_lock_is_locked_leaves_it_free(tmp_path, node):
    assert not is_locked(node)
    with NodeLock(state(tmp_path, "a"), node):
        assert is_locked(node)
    assert not is_locked(node)
    assert not is_locked(node)


def test_a_full_disk_costs_the_number_in_a_message_and_not_the_lock(tmp_path):
    os.makedirs(tmp_path / "a")
    os.symlink("/dev/full", lock_path(state(tmp_path, "a")))
    before = n_open()
    with NodeLock(state(tmp_path, "a")), pytest.raises(LockError, match="already runs this node"):
        NodeLock(state(tmp_path, "a")).acquire()
    assert n_open() == before


@needs_root
def test_who_may_not_lock_the_node_gets_one_line(tmp_path, node):
    os.makedirs(os.path.dirname(node), mode=0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(LockError, match=r"cannot use the lock .*: Permission denied; moving clocks needs root$"):
            FileLock(node, "holds it").acquire()
    finally:
        os.seteuid(0)


def test_a_state_directory_that_is_a_file_is_reported_as_such(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LockError, match=r"cannot use the lock .*/file/lock: its directory is a file$"):
        NodeLock(str(tmp_path / "file")).acquire()


def test_the_real_node_has_one_lock_and_an_emulated_one_in_this_process_none(tmp_path):
    assert node_lock_path().startswith("/run/nodectl/lock")
    assert system_ports().lock_path == node_lock_path()
    assert system_ports(str(tmp_path)).lock_path == ""
    assert file_node(tmp_path).lock_path == ""
    with InProcess(Twin(load_machine("curie"))) as inside:
        assert inside.ports.lock_path == ""


def test_another_tree_over_sys_is_another_node(monkeypatch, tmp_path):
    monkeypatch.setattr("pmu.system.CPU", str(tmp_path))
    device = os.stat(tmp_path).st_dev
    assert node_lock_path().endswith(f"-{os.major(device)}:{os.minor(device)}") or node_lock_path().endswith("/lock")
