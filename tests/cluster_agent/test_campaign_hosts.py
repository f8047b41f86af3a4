"""A campaign of several machines, here namespaces: host names, processes, networks and clocks of their own on one
folder; and a folder that is full, on a file system of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.campaigns import command, content, written
from cluster_agent.campaigns.campaign_folder import STATE
from cluster_agent.campaigns.worker import opened
from tests.waiting import PATIENCE_S, within

AHEAD_S = 300

CLOCK = r"""
/* The wall clock of another machine, and a file server that takes its time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long of(const char *name) { return getenv(name) ? atol(getenv(name)) : 0; }

int clock_gettime(clockid_t id, struct timespec *at)
{
    int (*next)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int status = next(id, at);
    if (!status && id == CLOCK_REALTIME)
        at->tv_sec += of("AHEAD_S");
    return status;
}

int gettimeofday(struct timeval *at, void *zone)
{
    int (*next)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int status = next(at, zone);
    at->tv_sec += of("AHEAD_S");
    return status;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

int rename(const char *from, const char *to)
{
    int (*next)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    usleep(1000 * of("SLOW_MS"));
    int status = next(from, to);
    usleep(1000 * of("SLOW_MS"));
    return status;
}
"""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("cc") is None:
        pytest.skip("namespaces need root, unshare (package util-linux) and cc (package gcc)")
    at = tmp_path_factory.mktemp("clock")
    (at / "clock.c").write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", at / "clock.so", at / "clock.c", "-ldl"], check=True)
    return at / "clock.so"


class Host:
    """A machine of its own, as far as a process sees: its name, processes, network, uptime and wall clock."""

    def __init__(self, name: str, clock: Path, ahead_s: int, slow_ms: int = 0) -> None:
        self._own = ["unshare", "-u", "-n", "-T", "--monotonic", str(ahead_s), "-p", "-f", "--kill-child"]
        self._own += ["sh", "-c", f'hostname {name}; exec "$@"', "sh"]
        self._env = os.environ | {"LD_PRELOAD": str(clock), "AHEAD_S": str(ahead_s), "SLOW_MS": str(slow_ms)}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*self._own, *words], env=self._env, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)  # fmt: skip

    def says(self, *words: str) -> str:
        said, error = self.start(*words).communicate(timeout=PATIENCE_S)
        assert not error
        return said.strip()


@pytest.fixture
def hosts(clock: Path) -> Iterator[list[Host]]:
    found = [Host("north", clock, AHEAD_S), Host("south", clock, 0, slow_ms=20), Host("east", clock, 60)]
    probe = "import socket, time; print(socket.gethostname(), int(time.time()), int(time.monotonic()))"
    try:
        north, south = (one.says(sys.executable, "-c", probe).split() for one in found[:2])
    except (AssertionError, ValueError):
        pytest.skip("this kernel gives no namespaces of host names and time")
    assert (north[0], south[0]) == ("north", "south")
    assert all(AHEAD_S - PATIENCE_S < int(a) - int(b) < AHEAD_S + 1 for a, b in zip(north[1:], south[1:], strict=True))
    yield found


WAITS = """\
import os
import socket
import time
from pathlib import Path

import msgspec

from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


def compose(params):
    def order(queue, now_s):
        mark = Path(__file__).parent / ("go-south" if socket.gethostname() == "south" else "go")
        while not mark.exists():
            time.sleep(0.01)
        return queue.submit_s * 1.0

    return Composition(order=order, backfill="none")


POLICY = Policy(name="waits", summary="FCFS that waits.", source="this test", params=Params, compose=compose)
"""


def test_machines_whose_clocks_are_minutes_apart_take_only_the_cells_of_those_that_are_gone(
    hosts: list[Host], tmp_path: Path
) -> None:
    """North, ahead of all, has nothing left to do while south, on a slow folder, is at work and east was killed."""
    (tmp_path / "waits.py").write_text(WAITS)
    file, out = written(tmp_path, (str(tmp_path / "waits.py"),), range(32, 35)), tmp_path / "out"
    subprocess.run(command(str(file), "--out", str(out), "-j", "0", "--lease", "2"), check=True, capture_output=True)
    folder = opened(str(out))

    def claimed() -> set[str]:
        return {worker.split("-")[0] for _, worker in folder.claims()}

    north, south, east = running = [one.start(*command("--join", str(out))) for one in hosts]
    try:
        assert within(PATIENCE_S, lambda: claimed() == {"north", "south", "east"})
        east.send_signal(signal.SIGKILL)
        (tmp_path / "go").touch()
        assert within(PATIENCE_S, lambda: folder.unfinished() == 1), "north has its own cell, and that of east"
        assert claimed() == {"south"}
        (tmp_path / "go-south").touch()
        for one in (north, south):
            _, error = one.communicate(timeout=PATIENCE_S)
            assert one.returncode == 0, error
    finally:
        for one in running:
            one.kill()
            one.communicate()
    assert [name.name.split(".")[1].split("-")[0] for name in (out / STATE / "lost").iterdir()] == ["east"]
    assert folder.unfinished() == 0 and not folder.failures()
    alone = tmp_path / "alone"
    subprocess.run(command(str(file), "--out", str(alone)), check=True, capture_output=True)
    assert content(out) == content(alone)


def test_a_file_system_that_is_full_ends_a_campaign_in_one_line_and_loses_nothing(clock: Path, tmp_path: Path) -> None:
    file, out = written(tmp_path, ("easy", "fcfs"), range(32, 42)), tmp_path / "out"
    out.mkdir()
    script = 'mount -t tmpfs -o size=1m none "$0" || exit 77; "$@"; echo "status $?"; ls "$0"/*/campaign.json | wc -l;'
    script += 'mount -o remount,size=64m "$0"; "$@"; echo "status $?"; ls "$0"/*/campaign.json | wc -l'
    words = command(str(file), "--out", str(out))
    done = subprocess.run(["unshare", "-m", "sh", "-c", script, str(out), *words], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("no file system can be mounted here")
    first, some, *_, last, all_ = (
        line for line in done.stdout.splitlines() if line.startswith("status") or line.isdigit()
    )
    assert (first, last, all_) == ("status 1", "status 0", "20") and 0 < int(some) < 20
    why = [line for line in done.stderr.splitlines() if "No space left on device" in line]
    assert len(why) == 1 and why[0].endswith("what is recorded stays, and the same command goes on from there")
    assert "Traceback" not in done.stderr
