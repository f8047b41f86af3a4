"""The process that has the links may end or hang at any time: the cluster agent goes on with the next one."""

import contextlib
import itertools
import os
import random
import signal
import socket
import time
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from cluster_agent.fabric import front_supervisor
from cluster_agent.fabric.front_pipe import LARGEST_FRAME, MOST_WAITING, Down, Pipe, PipeError, Send, Turn, Up
from tests.fabric.cluster import Cluster
from tests.fabric.links import Fabric, grant, report
from tests.waiting import PATIENCE_S, within

NUMBERS = itertools.count(1)


def both_ends(link, fabric):
    """A report goes up and a grant comes down, once the link is up again; what was sent before then is lost."""
    fabric.heard.clear()
    first = next(NUMBERS)

    def arrived():
        link.send(report("n0", next(NUMBERS)))
        fabric.now_s += 1.0
        fabric.router.send(grant("n0", next(NUMBERS)))
        return any(one.sequence > first for one in link.receive())

    fabric.until(arrived)
    assert fabric.heard


@pytest.mark.skipif(zmq.zmq_version_info() != (4, 3, 5), reason="docs/security.md says this of libzmq 4.3.5 only")
def test_an_allowed_key_that_makes_libzmq_abort_costs_new_connections_and_nothing_else(tmp_path):
    """More messages than may wait, a heartbeat among those that libzmq has read but not passed on, and hanging up.

    It passes them on once there is room, and would answer the heartbeat on the connection that has gone.
    """
    with Fabric(tmp_path) as fabric:
        link = fabric.link("n0")
        both_ends(link, fabric)
        first = fabric.router.front_pid
        deadline_s = time.monotonic() + PATIENCE_S
        while fabric.router.front_pid == first:
            assert time.monotonic() < deadline_s, "it cannot be ended so any more; what docs/security.md says is untrue"
            rude = fabric.dealer("n1", heartbeat_ivl=1, heartbeat_timeout=60_000, sndhwm=100_000)
            for _ in range(50):
                fabric.pump()
            for _ in range(100):
                for _ in range(20):
                    with contextlib.suppress(zmq.Again):
                        rude.send(b"more than may wait", zmq.NOBLOCK)
                time.sleep(0.001)  # a heartbeat's interval
            rude.close(0)
            for _ in range(20):
                fabric.pump()
        assert any("ended (SIGABRT)" in line for line in fabric.said)
        assert "n1 (" in fabric.router.trouble, "who connected last is named, so that its key can be revoked"
        both_ends(link, fabric)


@pytest.mark.parametrize("sent", [signal.SIGABRT, signal.SIGKILL, signal.SIGSTOP])
def test_a_front_process_that_ends_or_hangs_is_replaced_under_the_same_address(tmp_path, monkeypatch, sent):
    with Fabric(tmp_path) as fabric:
        link, url = fabric.link("n0"), fabric.router.url
        both_ends(link, fabric)
        for _ in range(2):  # the second time the spare is a new one
            before = fabric.router.front_pid
            os.kill(before, sent)
            if sent == signal.SIGSTOP:
                monkeypatch.setattr(front_supervisor, "SILENT_S", 1.5)
            fabric.until(lambda before=before: fabric.router.front_pid != before)
            monkeypatch.undo()
            assert not psutil.pid_exists(before), "no process is left, not even a stopped one"
            both_ends(link, fabric)
        assert fabric.router.url == url
        assert "ended 2 times" in fabric.router.trouble
        assert len([line for line in fabric.said if "takes over" in line]) == 1, "the log is not filled"


def test_without_a_spare_the_next_front_process_is_started(tmp_path):
    others = set(psutil.Process().children())  # of tests before this one
    with Fabric(tmp_path) as fabric:
        link = fabric.link("n0")
        both_ends(link, fabric)
        children = set(psutil.Process().children()) - others
        assert len(children) == 2
        for one in children:
            one.send_signal(signal.SIGABRT)
        fabric.until(lambda: fabric.router.front_pid not in {one.pid for one in children})
        both_ends(link, fabric)
    assert set(psutil.Process().children()) <= others, "both are gone when the agent closes its links"


def test_a_front_process_may_take_neither_all_memory_nor_leave_a_core_with_a_key_in_it(tmp_path):
    with Fabric(tmp_path) as fabric:
        limits = Path(f"/proc/{fabric.router.front_pid}/limits").read_text().splitlines()
        found = {line[:20].strip(): line[20:].split()[0] for line in limits}
        assert int(found["Max data size"]) <= front_supervisor.MEMORY
        assert found["Max core file size"] == "0"


def fronts(serve) -> list[psutil.Process]:
    found = []
    for one in psutil.Process(serve.pid).children():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if "cluster_agent.fabric.front" in one.cmdline():
                found.append(one)
    return found


def test_the_budget_epoch_and_grants_outlive_the_process_that_has_the_links(tmp_path):
    with Cluster(tmp_path, 900.0) as cluster:
        serve = cluster.serve()
        names = ("n0", "n1", "n2")
        for name in names:
            cluster.node(name, cap_w=150.0)
        cluster.until(lambda: all(cluster.cap_w(name) == 300.0 for name in names))
        epoch = cluster.ask("budget", "show")["epoch"]
        for sent in (signal.SIGABRT, signal.SIGKILL):
            before = {one.pid for one in fronts(serve)}
            for one in fronts(serve):
                one.send_signal(sent)
            cluster.until(lambda before=before: len({one.pid for one in fronts(serve)} - before) == 2)
        for watts in (750.0, 900.0):  # both a decrease and a raise get through again
            assert cluster.ctl("budget", "set", str(watts)).returncode == 0
            cluster.until(lambda watts=watts: all(cluster.cap_w(name) == watts / 3 for name in names))
        assert cluster.ask("budget", "show")["epoch"] == epoch
        ended = "the process that has the links ended"
        cluster.until(lambda: any(ended in alarm for alarm in cluster.ask("budget", "show")["alarms"]))
        assert serve.poll() is None
        threads = {task.read_text() for task in Path(f"/proc/{serve.pid}/task").glob("*/comm")}
        assert not any(one.startswith("ZMQ") for one in threads), "libzmq has no thread in the cluster agent"


def test_no_front_process_outlives_its_cluster_agent_not_even_a_stopped_one(tmp_path):
    with Cluster(tmp_path, 900.0) as cluster:
        serve = cluster.serve()
        cluster.until(lambda: len(fronts(serve)) == 2, is_kept=False)
        left = fronts(serve)
        left[0].send_signal(signal.SIGSTOP)
        for one in left:  # a terminal or systemd sends these to all at once; it is the agent that ends them
            one.send_signal(signal.SIGINT)
            one.send_signal(signal.SIGTERM)
        serve.kill()
        serve.wait()
        assert within(PATIENCE_S, lambda: not any(one.is_running() for one in left))
        again = cluster.serve()
        cluster.until(lambda: cluster.ask("budget", "show"), is_kept=False)
        assert cluster.end(again) == 0


def pipes() -> tuple[Pipe, Pipe]:
    ours, theirs = socket.socketpair()
    return Pipe(ours, Up), Pipe(theirs, Down)


def test_what_is_no_message_on_the_pipe_closes_it_and_does_nothing_else():
    dice = random.Random(3)
    whole = msgspec.msgpack.encode(Turn([], [], []))
    wrong = [
        (LARGEST_FRAME + 1).to_bytes(4, "big"),
        *(len(body).to_bytes(4, "big") + body for body in (
            b"", whole[:-1], msgspec.msgpack.encode(Send(b"a", b"b")),
            msgspec.msgpack.encode(["turn", [[1, 2]], [], []]),
            msgspec.msgpack.encode(["turn", [[b"x" * 300, "", True, b""]], [], []]),
            *(dice.randbytes(dice.randrange(1, 60)) for _ in range(200)),
        )),
    ]  # fmt: skip
    for frame in wrong:
        ours, theirs = pipes()
        theirs._socket.send(frame)
        with pytest.raises(PipeError):
            list(ours.receive())
        ours.close()
        theirs.close()


def test_messages_on_the_pipe_arrive_whole_and_in_order_however_slowly_they_are_read():
    ours, theirs = pipes()
    sent = [Send(b"n%d" % n, bytes(n * 100)) for n in range(1000)]
    for one in sent:
        assert ours.send(one)
    assert ours.waiting > 0, "nobody waits for the reader"
    got = []
    while len(got) < len(sent):
        got += theirs.receive()
        ours.flush()
    assert got == sent and ours.waiting == 0
    huge = Send(b"n", bytes(MOST_WAITING // 3))
    accepted = [ours.send(huge) for _ in range(5)]
    assert accepted.count(True) < 5, "what waits is bounded"
    ours.close()
    with pytest.raises(PipeError):
        while True:
            list(theirs.receive())
    theirs.close()
