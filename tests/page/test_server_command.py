"""``clusterctl page`` and ``clusterctl open`` as people start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.cli import main
from tests.page.synthetic_head import SyntheticHead
from tests.waiting import PATIENCE_S

CLUSTERCTL = [sys.executable, "-m", "cluster_agent.cli"]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyntheticHead]:
    with SyntheticHead(tmp_path_factory.mktemp("head") / "head.sock") as head:
        yield head


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program, which ends with the test at the latest."""
    started: list[subprocess.Popen[str]] = []

    def begin(command: list[str], **given: Any) -> subprocess.Popen[str]:
        started.append(subprocess.Popen(command, text=True, **given))
        return started[-1]

    yield begin
    for one in started:
        one.kill()
        one.wait()


def fetched(address: str) -> tuple[int, bytes]:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_page_of_ones_own_is_opened_and_its_secret_is_in_no_argument(
    head: SyntheticHead, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    browser, seen = tmp_path / "xdg-open", tmp_path / "seen"
    browser.write_text(
        f'#!/bin/sh\n{{ echo "$1"; stat -c %a "$(dirname "$1")"; cat "$1"; }} >{seen}.part\nmv {seen}.part {seen}\n'
    )
    browser.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "DISPLAY": ":99", "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [*CLUSTERCTL, "open", "--socket", str(head.path)]
    started = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    assert started.stdout is not None
    address = started.stdout.readline().strip()
    status, body = fetched(address)
    assert status == 200 and b"r000n00" in fetched(f"{address}api/nodes")[1] and body
    secret = address.rstrip("/").rpartition("/")[2]
    assert len(secret) == 32
    assert fetched(address.replace(secret, ""))[0] == fetched(address.replace(secret, "x" * 32))[0] == 404
    deadline_s = time.monotonic() + PATIENCE_S
    while not seen.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    path, mode, content = seen.read_text().split("\n", 2)
    assert secret not in path and mode == "700" and address in content
    assert secret not in "".join(path.read_text() for path in Path("/proc").glob(f"{started.pid}/cmdline"))
    started.send_signal(signal.SIGINT)
    assert (started.wait(PATIENCE_S), started.stderr.read() if started.stderr else "") == (0, "")
    assert not Path(path).exists()


def test_a_page_of_ones_own_ends_with_the_ssh_that_started_it(
    head: SyntheticHead, start: Callable[..., subprocess.Popen[str]]
) -> None:
    command = [*CLUSTERCTL, "open", "--no-browser", "--socket", str(head.path)]
    started = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert started.stdin is not None and started.stdout is not None
    started.stdin.write("what ssh passes on\n")
    started.stdin.flush()
    assert fetched(started.stdout.readline().strip())[0] == 200
    started.stdin.close()
    assert started.wait(PATIENCE_S) == 0


def test_sockets_come_with_their_mode_and_go_with_the_process(
    head: SyntheticHead,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    plain, proxy = tmp_path / "run" / "page.sock", tmp_path / "proxy.sock"
    command = [*CLUSTERCTL, "page", "--socket", str(head.path), "--listen", str(plain), "--proxy-socket", str(proxy)]
    command += ["--proxy-user", "root", "--pseudonyms", str(tmp_path / "key")]

    def served() -> subprocess.Popen[str]:
        started = start(command, stderr=subprocess.PIPE)
        assert started.stderr is not None
        assert started.stderr.readline() == f"clusterctl page: {plain} and {proxy}\n"
        return started

    first = served()
    assert [path.stat().st_mode & 0o777 for path in (plain, proxy, tmp_path / "key")] == [0o660, 0o666, 0o600]
    assert main(command[len(CLUSTERCTL) :]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "another page is" in error
    first.kill()
    first.wait(PATIENCE_S)
    assert plain.is_socket(), "a killed process leaves it, and the next one takes its place"
    third = served()
    third.terminate()
    assert third.wait(PATIENCE_S) == 0 and not plain.exists() and not proxy.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "0.0.0.0:9743"], "others could connect there"),
        (["--listen", "head:9743"], "give /PATH of a Unix socket, or 127.0.0.1:PORT"),
        (["--listen", "9743"], "give /PATH of a Unix socket, or 127.0.0.1:PORT"),
        (["--mode", "rw"], "give an octal mode, like 660"),
        (["--mode", "7777"], "give an octal mode, like 660"),
        (["--user-header", "X Remote"], "give the name of a header, like X-Remote-User"),
        (["--most", "0"], "--most"),
        (["--proxy-socket", "proxy.sock", "--proxy-user", "no-such"], "no user is called that on this machine"),
    ],
)
def test_a_wrong_option_is_one_line_and_nothing_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    listen = [] if "--listen" in options else ["--listen", str(tmp_path / "page.sock")]
    assert main(["page", *listen, *options]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1] and list(tmp_path.iterdir()) == []


def test_a_path_that_something_else_has_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.sock").write_text("somebody's")
    assert main(["page", "--listen", str(tmp_path / "page.sock")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "cannot listen there" in error
    assert (tmp_path / "page.sock").read_text() == "somebody's"
