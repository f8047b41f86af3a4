"""The socket on which people ask the cluster agent: who they are, what they may, and who is kept waiting."""

import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cluster_agent.errors import ClusterError
from cluster_agent.fabric.admin import SHARE, VIEWERS, AdminSocket
from cluster_agent.fabric.ask import ask
from cluster_agent.fabric.people import MAX_REQUEST, Caller, Request, answer
from tests.fabric.cluster import ROOT
from tests.waiting import PATIENCE_S


class Echo(Request[list[str]], frozen=True):
    kind = "echo"


class EchoOfAdmins(Request[list[str]], frozen=True):
    kind = "echo"
    role = "admin"


class EchoOfNumbers(Request[list[int]], frozen=True):
    kind = "echo"


class Door:
    """An admin socket and someone who asks, in one thread."""

    def __init__(self, tmp_path: Path, role: str = "viewer", admins: frozenset[str] = frozenset()) -> None:
        self.asked: list[Caller] = []
        self.path = tmp_path / "ctl.sock"

        def echo(caller: Caller, request: Echo) -> list[str]:
            self.asked.append(caller)
            return ["x"]

        self.handlers = {EchoOfAdmins if role == "admin" else Echo: echo}
        self.admin = AdminSocket(self.path, self.handlers, admins)

    def callers(self) -> list[Caller]:
        """Who is connected."""
        return [one.caller for one in self.admin._connections.values()]

    def serve(self, now_s: float = 0.0) -> None:
        for descriptor in self.admin.interests():
            self.admin.serve(now_s, descriptor)


def test_the_kernel_says_who_asks_and_only_admins_change_things(tmp_path, monkeypatch):
    door = Door(tmp_path, "admin")
    frame = msgspec.msgpack.encode([1, "echo", {}])
    assert answer(door.handlers, Caller(1000, "eve", "viewer"), frame).error.startswith("eve may look, but not change")
    assert answer(door.handlers, Caller(0, "root", "admin"), frame).body == ["x"]
    with socket.socket(socket.AF_UNIX) as asker:
        asker.connect(str(door.path))
        asker.sendall(len(frame).to_bytes(4, "big") + frame)
        door.serve()
        door.serve()
        assert asker.recv(100)
    assert door.asked[-1].uid == os.geteuid()
    door.admin.close()


def test_an_answer_of_another_version_is_one_line(tmp_path):
    door = Door(tmp_path)
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.wait(0.01):
            door.serve()

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        assert ask(door.path, Echo()) == ["x"]
        with pytest.raises(ClusterError, match="what answers is no cluster agent of this version: restart it"):
            ask(door.path, EchoOfNumbers())
    finally:
        is_over.set()
        serving.join()
        door.admin.close()


def test_garbage_and_sloth_on_the_socket_for_people_keep_nobody_waiting(tmp_path):
    dice = random.Random(5)
    door = Door(tmp_path)
    for _ in range(300):
        with socket.socket(socket.AF_UNIX) as rude:
            rude.connect(str(door.path))
            data = dice.randbytes(dice.randrange(1, 200))
            if dice.random() < 0.5:
                data = len(data).to_bytes(4, "big") + data
            rude.sendall(data)
            door.serve()
            door.serve()
        door.serve()
    sleepers = [socket.socket(socket.AF_UNIX) for _ in range(40)]
    for one in sleepers:
        one.connect(str(door.path))
        door.serve(1.0)
    door.admin.tidy(100.0)
    assert len(door.admin.interests()) == 1
    huge = socket.socket(socket.AF_UNIX)
    huge.connect(str(door.path))
    huge.sendall((MAX_REQUEST + 1).to_bytes(4, "big"))
    door.serve(101.0)
    door.serve(101.0)
    assert huge.recv(10) == b""
    for one in (*sleepers, huge):
        one.close()
    door.admin.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes the place of other users, as root can")
def test_answers_that_take_long_do_not_keep_the_loop_and_administrators_and_other_users_come_first():
    with tempfile.TemporaryDirectory() as directory:  # tmp_path is closed to other users
        os.chmod(directory, 0o755)
        door = Door(Path(directory), admins=frozenset({"65531"}))
        frame = msgspec.msgpack.encode([1, "echo", {}])
        asking: list[socket.socket] = []
        try:
            for uid in (65501, 65501, 65501, 65502, 65531):
                asking.append(made := socket.socket(socket.AF_UNIX))
                os.seteuid(uid)
                try:
                    made.connect(str(door.path))
                finally:
                    os.seteuid(0)
                made.sendall(len(frame).to_bytes(4, "big") + frame)
            door.admin.serve_all(0.0, list(door.admin.interests()), time.monotonic())  # they are let in
            for n in range(1, 6):
                door.admin.serve_all(0.0, list(door.admin.interests()), time.monotonic())
                assert len(door.asked) == n, "one at least, and one at most when the time is over"
            assert [caller.uid for caller in door.asked] == [65531, 65501, 65502, 65501, 65501]
        finally:
            for one in asking:
                one.close()
            door.admin.close()


CROWD = """
import os, socket, sys
path, uid, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.setuid(uid)
silent = [socket.socket(socket.AF_UNIX) for _ in range(n)]
for one in silent:
    one.setblocking(False)
    one.connect(path)
print("there", flush=True)
sys.stdin.read()
"""
ASKER = """
import os, sys
from pathlib import Path
from cluster_agent.fabric.ask import ask
from tests.fabric.test_people_socket import Echo
os.setuid(int(sys.argv[2]))
print(ask(Path(sys.argv[1]), Echo()), flush=True)
"""


def as_user(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_silent_connections_of_some_users_keep_neither_other_users_nor_administrators_out():
    """As in production: administrators, one of them by name, and users that are in no list of users."""
    with tempfile.TemporaryDirectory() as directory:  # tmp_path is closed to other users
        os.chmod(directory, 0o755)
        door = Door(Path(directory), admins=frozenset({"65531"}))
        ended: list[subprocess.Popen[str]] = []

        def serve_while(is_going_on: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
            until_s = time.monotonic() + patience_s
            while is_going_on():
                assert time.monotonic() < until_s
                door.serve()
                time.sleep(0.001)

        def crowd(uid: int, n: int) -> None:
            ended.append(made := as_user(CROWD, door.path, uid, n))
            assert made.stdout is not None
            assert made.stdout.readline() == "there\n"
            door.serve()
            door.serve()

        try:
            crowd(65501, 100)
            assert len(door.admin.interests()) == 1 + SHARE, "a user has its share and no more"
            for n in range(5):  # together more than fit
                crowd(65502 + n, SHARE)
            assert len(door.admin.interests()) == 1 + VIEWERS
            for uid in (0, 65531, 65501, 65530):  # who is crowded out is asked for nothing but patience, never refused
                ended.append(asker := as_user(ASKER, door.path, uid))
                serve_while(lambda asker=asker: asker.poll() is None)
                assert asker.returncode == 0
                assert (door.asked[-1].uid, door.asked[-1].role) == (uid, "admin" if uid in (0, 65531) else "viewer")
            crowd(65531, 100)
            assert len(door.admin.interests()) == 1 + VIEWERS - 1 + SHARE, "administrators have room of their own"
            assert len({caller.uid for caller in door.callers()}) == 7
        finally:
            for one in ended:
                one.kill()
                one.communicate()
            door.admin.close()


def test_who_is_one_too_many_is_told_so_and_it_is_the_one_that_waits_longest(tmp_path):
    door = Door(tmp_path)
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(SHARE + 1)]
    for one in crowd:
        one.connect(str(door.path))
    door.serve()
    assert b"too many connections at once" in crowd[0].recv(1000)
    assert crowd[0].recv(10) == b""
    crowd[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        crowd[1].recv(10)
    for one in crowd:
        one.close()
    door.admin.close()


def test_a_socket_left_by_a_killed_agent_is_replaced_and_one_in_use_is_not(tmp_path):
    door = Door(tmp_path)
    with pytest.raises(ClusterError, match="another cluster agent is"):
        Door(tmp_path)
    door.admin._listening.close()  # as SIGKILL leaves it
    Door(tmp_path).admin.close()


def test_a_file_where_the_socket_should_be_is_left_as_it_is(tmp_path):
    (tmp_path / "ctl.sock").write_text("somebody's")
    with pytest.raises(ClusterError, match="something else has this name; move it away"):
        Door(tmp_path)
    assert (tmp_path / "ctl.sock").read_text() == "somebody's"
