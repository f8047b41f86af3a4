"""Who may only notify: a key over a link, a user on the agent's machine. Neither can set a budget."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from cluster_agent.errors import ClusterError
from cluster_agent.fabric.admin import SHARE, VIEWERS, AdminSocket
from cluster_agent.fabric.ask import Link, ask
from cluster_agent.fabric.people import NOBODY, Caller, Later, answer
from cluster_agent.hook.build_hook import build
from cluster_agent.serve.people_protocol import (
    ListForeign,
    ListNodes,
    Noticed,
    NotifyEnd,
    NotifyStart,
    SetBudget,
    ShowBudget,
)
from cluster_agent.slurm.site_check import lacking
from tests.fabric.cluster import Cluster

SAID = Noticed("in force", ["said"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("head"), 1000.0) as made:
        made.serve()
        made.node("n01")
        made.run("keys", "new", "slurm", "--role", "notifier", "--dir", str(made.keys))
        made.run("keys", "new", "bob", "--role", "viewer", "--dir", str(made.keys))
        made.until(lambda: [row["state"] for row in made.ask("nodes") or []] == ["capped"])
        yield made


def test_a_notifiers_key_notifies_and_cannot_set_a_budget_or_look(cluster: Cluster, tmp_path: Path) -> None:
    slurm = Link(cluster.url, cluster.keys / "slurm.key", str(cluster.keys / "cluster.key"))
    assert ask(slurm, NotifyStart("7", ["n01"], cluster="hpc")).words == ["job 7@hpc runs on 1 node"]
    assert [one.name for one in ask(slurm, ListForeign())] == ["7@hpc"]
    for request in (SetBudget(900.0), SetBudget(900.0, dry_run=True), ListNodes(), ShowBudget()):
        with pytest.raises(ClusterError, match="key slurm may say what another job manager runs, but not do anything"):
            ask(slurm, request)
    assert cluster.ask("budget", "show")["budget_w"] == 1000.0
    bob = Link(cluster.url, cluster.keys / "bob.key", str(cluster.keys / "cluster.key"))
    for request in (NotifyStart("8", ["n01"]), NotifyEnd("7", "hpc")):
        with pytest.raises(ClusterError, match="key bob may look, but not change anything"):
            ask(bob, request)
    assert ask(bob, ListForeign()) == ask(slurm, ListForeign())  # which looks, and is no secret at the socket
    conf = tmp_path / "slurm.conf"
    conf.write_text("NodeName=n01\n")
    refused = "key bob may look, but not change anything (`admins` in the settings) (`notifiers` in cluster.toml"
    assert refused in "".join(lacking(conf, "/bin/true", bob))
    assert "notifiers" not in "".join(lacking(conf, "/bin/true", slurm))
    assert ask(slurm, NotifyEnd("7", "hpc")) == ["job 7@hpc has ended"]


def test_a_job_manager_that_starts_many_jobs_at_once_is_heard_over_a_link(cluster: Cluster) -> None:
    """More than ``BURST``: a notifier's key is allowed more messages than a node's."""
    slurm = Link(cluster.url, cluster.keys / "slurm.key", str(cluster.keys / "cluster.key"))
    for number in range(60):
        ask(slurm, NotifyStart(str(number), ["n01"]))
    assert len(ask(slurm, ListForeign())) == 60
    for number in range(60):
        ask(slurm, NotifyEnd(str(number)))


def test_the_hook_speaks_over_a_link_with_its_key(cluster: Cluster, tmp_path: Path) -> None:
    hook = build(tmp_path / "nodectl-hook")
    library = next(Path(zmq.__file__).parents[1].glob("pyzmq.libs/libzmq*"), "libzmq.so.5")
    environment = {
        "SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[01-02]", "NODECTL_LIBZMQ": str(library),
        "LD_LIBRARY_PATH": str(Path(library).parent),
    }  # fmt: skip

    def run(what: str, key: str, wait: str = "20") -> subprocess.CompletedProcess[str]:
        words = [
            "--socket",
            cluster.url,
            "--key",
            cluster.keys / f"{key}.key",
            "--server",
            cluster.keys / "cluster.key",
        ]
        command = [hook, what, *words, "--wait", wait]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    done = run("start", "slurm")
    assert done.returncode == 0 and "caps are in force" in done.stderr, done.stderr
    assert "17" in cluster.ctl("notify", "list").stdout
    assert "may look, but not change" in run("end", "bob").stderr
    assert "said" in run("end", "slurm").stderr
    assert "no job of another manager" in cluster.ctl("notify", "list").stdout
    (cluster.keys / "slurm.key").chmod(0o644)
    assert "others may read this secret key" in run("start", "slurm").stderr
    (cluster.keys / "slurm.key").chmod(0o600)
    cluster.run("keys", "revoke", "bob", "--dir", str(cluster.keys))
    assert "no answer in time" in run("end", "bob", wait="1").stderr


def test_what_each_role_may_do() -> None:
    def start(caller: Caller, request: NotifyStart) -> Noticed:
        return SAID

    def show(caller: Caller, request: ShowBudget) -> str:
        return "shown"

    def set_budget(caller: Caller, request: SetBudget) -> str:
        return "set"

    handlers = {NotifyStart: start, ShowBudget: show, SetBudget: set_budget}
    frames = {
        "notify": msgspec.msgpack.encode([1, "notify-start", {"job": "7", "nodes": ["n1"]}]),
        "look": msgspec.msgpack.encode([1, "budget", {}]),
        "set": msgspec.msgpack.encode([1, "budget-set", {"w": 5.0}]),
    }

    def may(uid: int, role: str) -> set[str]:
        found = {what: answer(handlers, Caller(uid, "x", role), frame) for what, frame in frames.items()}
        return {what for what, one in found.items() if not isinstance(one, Later) and not one.error}

    assert may(0, "admin") == may(NOBODY, "admin") == {"notify", "look", "set"}
    assert may(64032, "notifier") == {"notify", "look"}, "on the agent's machine everybody may look"
    assert may(NOBODY, "notifier") == {"notify"}
    assert may(1000, "viewer") == may(NOBODY, "viewer") == {"look"}
    assert may(NOBODY, "node") == may(NOBODY, "") == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes the place of other users, as root can")
def test_a_user_of_the_settings_notifies_whatever_viewers_do_and_waits_apart_from_its_share() -> None:
    """Starts that wait are many where a large array starts; they must not close one another."""
    answers: dict[str, Noticed | None] = {"now": None}
    later: list[Later] = []

    def start(caller: Caller, request: NotifyStart) -> Later:
        assert caller.role == "notifier"
        later.append(Later(lambda at_s: answers["now"], 50.0))
        return later[-1]

    folder = Path(tempfile.mkdtemp())  # pytest's is closed to other users
    folder.chmod(0o755)
    path = folder / "s"
    door = AdminSocket(path, {NotifyStart: start}, notifiers=frozenset({"65531"}))
    frame = msgspec.msgpack.encode([1, "notify-start", {"job": "7", "nodes": ["n1"]}])
    asking: list[socket.socket] = []

    def connect(uid: int) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        asking.append(made)
        os.seteuid(uid)
        try:
            made.connect(str(path))
        finally:
            os.seteuid(0)
        return made

    def serve(now_s: float = 0.0) -> None:
        for descriptor in door.interests():
            door.serve(now_s, descriptor)

    try:
        waiting = [connect(65531) for _ in range(SHARE + 5)]
        for one in waiting:
            one.sendall(len(frame).to_bytes(4, "big") + frame)
        serve()
        serve()
        assert len(later) == len(waiting)
        for uid in range(60_000, 60_000 + VIEWERS // SHARE + 2):
            for _ in range(SHARE):
                connect(uid)
                serve()
        assert door.due_s == 50.0
        door.tidy(1.0)
        for one in waiting:
            with pytest.raises(BlockingIOError):
                one.recv(1, socket.MSG_DONTWAIT)
        answers["now"] = SAID
        door.tidy(49.0)
        for one in waiting:
            one.settimeout(10)
            size = int.from_bytes(one.recv(4), "big")
            assert msgspec.msgpack.decode(one.recv(size)) == [1, "", 0, {"state": "in force", "words": ["said"]}]
        assert door.due_s == float("inf")
    finally:
        door.close()
        folder.rmdir()
        for one in asking:
            one.close()
