"""The service's two edges: systemd's notification socket, and signals."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from foundation.shell import notify
from foundation.shell.notify import Notifier
from nodectl.commands import run
from nodectl.config import Config
from nodectl.decide.node_cap import CapRequest
from nodectl.loop.interruptions import Interruptions
from nodectl.loop.status_line import StatusLine
from nodectl.loop.summary import Energy
from tests.waiting import PATIENCE_S


class RealClock:
    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_until_ns(self, deadline_ns: int) -> None:
        time.sleep(max(deadline_ns - time.monotonic_ns(), 0) / 1e9)


def in_ns(seconds: float) -> int:
    return time.monotonic_ns() + round(seconds * 1e9)


def soon(seconds: float, number: int) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), number)).start()


def test_systemd_hears_that_the_agent_is_ready_and_alive(tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        systemd.settimeout(PATIENCE_S)
        notifier = Notifier({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())})
        notifier.send("READY=1")
        for now_ms in (0, 100, 199, 200, 250, 2000):  # the last after a tick of nearly all that the watchdog grants
            notifier.alive(1_000_000_000_000 + now_ms * 1_000_000)
        notifier.send("STOPPING=1")
        heard = [systemd.recv(100).decode() for _ in range(5)]
    assert heard == ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]


def test_the_abstract_namespace_is_understood():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0nodectl-test-notify")
        systemd.settimeout(PATIENCE_S)
        Notifier({"NOTIFY_SOCKET": "@nodectl-test-notify"}).send("READY=1")
        assert systemd.recv(100) == b"READY=1"


def test_an_agent_that_is_no_service_says_nothing_and_a_deaf_systemd_does_not_end_it(tmp_path):
    Notifier({}).send("READY=1")
    gone = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "1"})
    gone.send("READY=1")
    gone.alive(1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, pytest.raises(BlockingIOError):
        systemd.bind(str(tmp_path / "gone"))
        systemd.setblocking(False)
        gone.send("STOPPING=1")  # it has given that socket up
        systemd.recv(100)


def test_a_systemd_that_does_not_read_stops_nobody_and_is_fed_again_once_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "PATIENCE_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE_S)
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "10"})
        for now_ns in range(0, 1_000_000, 1_000):  # more than any queue takes
            notifier.alive(now_ns)
        notifier.send("READY=1")
        notifier.status(10**12, lambda: "lost")
        systemd.setblocking(False)
        fed = 0
        with contextlib.suppress(BlockingIOError):
            while systemd.recv(100) == b"WATCHDOG=1":
                fed += 1
        assert 0 < fed < 1_000
        notifier.alive(2_000_000)
        assert systemd.recv(100) == b"WATCHDOG=1", "it listens still"
        notifier.status(10**13, lambda: "lost")
        assert systemd.recv(100) == b"STATUS=lost", "it was not taken for known"


def test_a_watchdog_meant_for_another_process_is_not_fed():
    notifier = Notifier({"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"})
    assert notifier._every_ns == 0


def test_the_watchdog_is_fed_by_the_loop_and_by_nothing_else(tmp_path, monkeypatch):
    """A loop that hangs in a sensor must be seen to hang."""
    path = str(tmp_path / "notify")
    fed_while_hung = []

    def heard():
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(systemd.recv(100).decode().split("\n")[0])
        return found

    class HangingAgent:
        config = Config()

        def run(self, until_ns, is_over, each_tick):
            each_tick()
            assert heard() == ["READY=1", "WATCHDOG=1", "STATUS=healthy"]
            time.sleep(0.3)
            fed_while_hung.extend(heard())
            each_tick()

        def stop(self):
            assert heard() == ["WATCHDOG=1", "STOPPING=1"]

        def status(self):
            return "healthy"

        def summary(self): ...

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        monkeypatch.setenv("WATCHDOG_USEC", "10000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        monkeypatch.setattr(run, "_print", lambda *_, **__: None)
        with Interruptions(RealClock()) as interruptions:
            assert run._serve(HangingAgent(), None, interruptions, RealClock(), None, as_json=True) == 0
    assert fed_while_hung == []


def test_a_loop_with_a_long_period_feeds_the_watchdog_while_it_sleeps(tmp_path, monkeypatch):
    monkeypatch.setattr("nodectl.loop.interruptions.STEP_S", 0.01)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "10000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    monkeypatch.setattr(run, "_print", lambda *_, **__: None)

    class SleepingAgent:
        config = Config()

        def run(self, until_ns, is_over, each_tick):
            interruptions.wait(in_ns(0.3))
            systemd.setblocking(False)
            assert [systemd.recv(100) for _ in range(3)] == [
                b"READY=1\nSTATUS=monitor, every 100 ms",
                *[b"WATCHDOG=1"] * 2,
            ]

        def stop(self): ...

        def summary(self): ...

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, Interruptions(RealClock()) as interruptions:
        systemd.bind(str(tmp_path / "notify"))
        assert run._serve(SleepingAgent(), None, interruptions, RealClock(), None, as_json=True) == 0


def test_a_stop_signal_ends_the_sleep_at_once():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with Interruptions(RealClock()) as interruptions:
            assert not interruptions.is_over()
            soon(0.05, number)
            begin = time.monotonic()
            interruptions.wait(in_ns(120))
            assert time.monotonic() - begin < PATIENCE_S
            assert interruptions.is_over()


def test_a_sleep_that_nothing_interrupts_lasts_to_its_deadline():
    with Interruptions(RealClock()) as interruptions:
        deadline_ns = in_ns(0.05)
        interruptions.wait(deadline_ns)
        assert 0 <= time.monotonic_ns() - deadline_ns < PATIENCE_S * 1e9


def test_the_end_of_the_command_ends_the_sleep():
    with Interruptions(RealClock()) as interruptions:
        child = subprocess.Popen(["sleep", "0.1"])
        interruptions.watch(child)
        begin = time.monotonic()
        interruptions.wait(in_ns(120))
        assert time.monotonic() - begin < PATIENCE_S
        assert interruptions.is_over() and child.returncode == 0


def test_a_signal_is_passed_on_to_the_command_and_the_run_lasts_until_it_has_ended():
    with Interruptions(RealClock()) as interruptions:
        child = subprocess.Popen(["sleep", "120"])
        interruptions.watch(child)
        soon(0.05, signal.SIGTERM)
        interruptions.wait(in_ns(120))
        assert child.returncode == -signal.SIGTERM


def test_a_second_signal_kills_a_command_that_ignores_the_first():
    with Interruptions(RealClock()) as interruptions:
        child = subprocess.Popen(
            ["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.01; done"], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        interruptions.watch(child)
        soon(0.02, signal.SIGTERM)
        soon(0.2, signal.SIGTERM)
        interruptions.wait(in_ns(10))
        assert child.returncode == -signal.SIGKILL
        child.stdout.close()


def test_handlers_are_as_before_when_the_run_is_over():
    before = signal.getsignal(signal.SIGTERM)
    with Interruptions(RealClock()):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_status_is_sent_every_five_seconds_at_most_and_only_when_it_has_changed(tmp_path):
    path = str(tmp_path / "notify")
    texts = iter(["cap 300 W", "cap 300 W", "cap\n200 W"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        systemd.settimeout(PATIENCE_S)
        notifier = Notifier({"NOTIFY_SOCKET": path})
        for now_s in (100, 101, 104.9, 105, 110):
            notifier.status(round(now_s * 1e9), lambda: next(texts))
        notifier.send("STOPPING=1")
        heard = [systemd.recv(100).decode() for _ in range(3)]
    assert heard == ["STATUS=cap 300 W", "STATUS=cap\\n200 W", "STOPPING=1"]
    Notifier({}).status(0, lambda: pytest.fail("nobody listens"))


def energy(joules: float, missing_s: float = 0.0) -> list[Energy]:
    other = Energy("package-0/core", "other", 1e6, {}, 0.0)
    return [Energy("package-0", "cpu", joules, {}, missing_s), Energy("gpu-0", "gpu", joules, {}, 0.0), other]


def test_the_status_line_has_cap_watts_and_health_and_a_gap_is_no_zero():
    line = StatusLine(rest_w=60.0)
    cap = CapRequest(300.0, "the cluster")
    assert line.text(None, 0.0, energy(0.0), [], "monitor") == "no cap, power not measured, healthy (monitor)"
    said = line.text(cap, 10.0, energy(500.0), [], "optimize")
    assert said == "cap 300 W by the cluster, power 160 W, healthy (optimize)"
    said = line.text(cap, 15.0, energy(600.0, 5.0), ["no energy of package-0"], "optimize")
    assert "power unknown (no reading of package-0), TROUBLE: no energy of package-0" in said
    assert "power 100 W" in line.text(cap, 20.0, energy(700.0, 5.0), [], "optimize"), "the mean since the line before"
