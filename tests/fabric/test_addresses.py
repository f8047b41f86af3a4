"""Links and listeners over IPv6, and over names with addresses of both families."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_agent.fabric.router import Router
from foundation.shell.errors import UsageError
from foundation.shell.settings import host_and_port, is_address
from foundation.wire.addresses import endpoints, is_loopback, plain_address, why_none_answers, why_unreachable
from nodectl.member.cluster_link import ClusterLink
from tests.fabric.cluster import Cluster
from tests.fabric.links import Fabric, pair
from tests.nodectl.test_cluster_cap_alone import Alone
from tests.waiting import PATIENCE_S


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 on loopback")

NAME = "head.test"
HOSTS = f"::1 {NAME}\n127.0.0.1 {NAME}\n"
OF_FAMILY = {"IPv4": "tcp://127.0.0.1:*", "IPv6": "tcp://[::1]:*"}


def in_a_resolver(hosts: Path, *command: str) -> list[str]:
    """The command in a mount namespace of its own, where names are looked up in this file alone."""
    if os.geteuid() != 0:
        pytest.skip("a resolver of one's own needs root")
    switch = f"{hosts}.nsswitch"
    Path(switch).write_text("hosts: files\n")
    bind = f'mount --bind "{hosts}" /etc/hosts; mount --bind "{switch}" /etc/nsswitch.conf; exec "$@"'
    return ["unshare", "--mount", "sh", "-ec", bind, "sh", *command]


JOIN = """
import sys, time
from nodectl.member.cluster_link import ClusterLink
from tests.fabric.links import report
from foundation.wire.keys import KeyPair
url, public, secret, server = sys.argv[1:]
link, began_s = ClusterLink(url, KeyPair(public, secret), server), time.monotonic()
while not link.is_up:
    link.receive()
    link.wait(20)
print("up", round(time.monotonic() - began_s, 3), flush=True)
link.send(report())
while True:
    link.receive()
    link.wait(20)
"""


@contextlib.contextmanager
def joining(fabric: Fabric, hosts: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    keys = fabric.allow("n0")
    command = [sys.executable, "-c", JOIN, url, keys.public, keys.secret, fabric.keys.public]
    with subprocess.Popen(in_a_resolver(hosts, *command), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def fabric_at(tmp_path: Path, url: str) -> Fabric:
    fabric = Fabric(tmp_path)
    fabric.router.close()
    fabric.router = Router(url, fabric.keys, fabric.allowed, fabric.said.append)
    return fabric


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_a_name_of_both_families_of_which_one_answers_joins(tmp_path: Path, family: str) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(HOSTS)
    with fabric_at(tmp_path, OF_FAMILY[family]) as fabric:
        port = fabric.router.url.rpartition(":")[2]
        with joining(fabric, hosts, f"tcp://{NAME}:{port}") as process:
            fabric.until(lambda: fabric.heard or process.poll() is not None)
            assert process.stdout is not None and process.stdout.readline().startswith("up ")
            assert [one.node for one in fabric.heard] == ["n0"]


def test_an_address_that_answers_nothing_at_all_costs_a_name_a_few_seconds(tmp_path: Path) -> None:
    """A full queue of connections drops what comes, as a firewall does."""
    hosts = tmp_path / "hosts"
    hosts.write_text(HOSTS)
    with fabric_at(tmp_path, OF_FAMILY["IPv4"]) as fabric, socket.socket(socket.AF_INET6) as full:
        port = int(fabric.router.url.rpartition(":")[2])
        full.bind(("::1", port))
        full.listen(0)
        waiting = [socket.socket(socket.AF_INET6) for _ in range(3)]
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(("::1", port))
            if not why_unreachable(f"tcp://[::1]:{port}", 0.5).startswith("no answer within"):
                pytest.skip("this kernel answers although the queue is full")
            with joining(fabric, hosts, f"tcp://{NAME}:{port}") as process:
                fabric.until(lambda: fabric.heard or process.poll() is not None)
                assert process.stdout is not None
                seconds = float(process.stdout.readline().split()[1])
                assert seconds > 2.0, "the first address was tried first"
        finally:
            for one in waiting:
                one.close()


def test_a_name_whose_address_changes_is_found_again(tmp_path: Path) -> None:
    """The head has moved: its old address refuses, and the name leads elsewhere now."""
    hosts = tmp_path / "hosts"
    hosts.write_text(f"::1 {NAME}\n")
    with fabric_at(tmp_path, OF_FAMILY["IPv4"]) as fabric:
        port = fabric.router.url.rpartition(":")[2]
        with joining(fabric, hosts, f"tcp://{NAME}:{port}") as process:
            for _ in range(20):
                fabric.pump()
            with hosts.open("w") as file:  # the same file: it is mounted
                file.write(f"127.0.0.1 {NAME}\n")
            fabric.until(lambda: fabric.heard or process.poll() is not None)
            assert fabric.heard


def test_a_link_and_clusterctl_reach_an_ipv6_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(tmp_path, 1000.0) as cluster:
        port = re.sub(r".*:", "", cluster.url)
        cluster.url = f"tcp://[::1]:{port}"
        cluster.config.write_text(
            re.sub(r'listen = ".*?"', f'listen = "tcp://[::]:{port}"', cluster.config.read_text())
        )
        cluster.serve()
        cluster.node("n0", cap_w=150.0)
        cluster.run("keys", "new", "bob", "--role", "viewer", "--dir", str(cluster.keys))
        monkeypatch.setenv("CLUSTERCTL_KEY", str(cluster.keys / "bob.key"))
        monkeypatch.setenv("CLUSTERCTL_SERVER", str(cluster.keys / "cluster.key"))
        cluster.until(lambda: any(row["state"] == "capped" for row in cluster.ask("nodes") or []))
        for url in (cluster.url, f"tcp://127.0.0.1:{port}", f"tcp://localhost:{port}"):
            monkeypatch.setattr(cluster, "socket", url)
            done = cluster.ctl("nodes")
            assert done.returncode == 0 and "n0" in done.stdout, (url, done.stderr)


def test_a_foreign_keys_ipv4_address_is_logged_as_such_by_a_listener_of_both_families(tmp_path: Path) -> None:
    with fabric_at(tmp_path, "tcp://[::]:*") as fabric:
        port = fabric.router.url.rpartition(":")[2]
        for url, said in ((f"tcp://127.0.0.1:{port}", "from 127.0.0.1"), (f"tcp://[::1]:{port}", "from ::1")):
            link = ClusterLink(url, pair(), fabric.keys.public)
            fabric.until(lambda said=said: any(line.endswith(said) for line in fabric.said))  # type: ignore[misc]
            link.close()
    assert plain_address("::ffff:10.0.0.1") == "10.0.0.1" and plain_address("strange") == "strange"


def test_a_link_that_cannot_be_made_is_said_once_a_minute_with_the_reason() -> None:
    made = Alone()
    made.wire.is_up, made.wire.why_down = False, "not connected yet; connection refused"
    for _ in range(3 * 60 + 1):
        made.tick(300.0, ms=1000)
    assert made.said == 4 * ["tcp://test: not connected yet; connection refused"]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("tcp://127.0.0.1:1", "^connection refused$"),
        ("tcp://[::1]:1", "^connection refused$"),
        ("tcp://nowhere.invalid:1", "^its name has no address: "),
    ],
)
def test_the_link_knows_why_no_connection_can_be_made(url: str, why: str) -> None:
    link = ClusterLink(url, pair(), pair().public)
    try:
        until_s = time.monotonic() + PATIENCE_S
        while link.why_down == "not connected yet":
            assert time.monotonic() < until_s
            link.receive()
            link.wait(20)
        assert re.search(why, link.why_down.removeprefix("not connected yet; ")), link.why_down
    finally:
        link.close()


def test_why_none_answers_names_each_address(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 1, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1)),
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1", 1, 0, socket.if_nametoindex("lo"))),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert endpoints("tcp://head:1") == ["tcp://[::1]:1", "tcp://127.0.0.1:1", "tcp://[fe80::1%lo]:1"]
    found.pop()
    assert why_none_answers("tcp://head:1") == "[::1]:1: connection refused; 127.0.0.1:1: connection refused"


@pytest.mark.parametrize(
    "text", ["::1:9742", "[::1]", "[head]:1", "[::1:1", "a:b:1", "head:65536", "head:", ":1", "hea d:1"]
)
def test_an_address_that_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        host_and_port(text)
    assert not is_address(f"tcp://{text}")


def test_addresses_are_read_with_and_without_brackets() -> None:
    assert host_and_port("[::1]:9742") == ("::1", 9742) and host_and_port("head:1") == ("head", 1)
    assert host_and_port("[fe80::1%eth0]:1") == ("fe80::1%eth0", 1)
    for url in ("tcp://[::]:7410", "tcp://*:7410", "tcp://head.example:7410", "ipc:///run/x", "tcp://[fe80::1%lo]:1"):
        assert is_address(url)
    assert is_loopback("tcp://[::1]:1") and is_loopback("tcp://127.3.2.1:1") and is_loopback("tcp://localhost:1")
    assert not any(map(is_loopback, ("tcp://127.evil.example:1", "tcp://[::]:1", "tcp://0.0.0.0:1", "tcp://head:1")))


@pytest.mark.parametrize(
    ("listen", "asked"), [("[::1]", ["[::1]"]), ("[::]", ["[::1]", "127.0.0.1"]), (NAME, ["[::1]", "127.0.0.1"])]
)
def test_metrics_are_served_over_every_address_of_a_listener(tmp_path: Path, listen: str, asked: list[str]) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(HOSTS)
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "nodectl.cli", "metrics", "--listen", f"{listen}:{port}"]
    with subprocess.Popen(in_a_resolver(hosts, *command), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == f"nodectl metrics: http://{listen}:{port}/metrics\n"
            for host in asked:
                with socket.create_connection((host.strip("[]"), port), PATIENCE_S) as connection:
                    connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                    connection.settimeout(PATIENCE_S)
                    text = b"".join(iter(lambda: connection.recv(65536), b""))
                assert b"nodectl_up 0.0" in text
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
