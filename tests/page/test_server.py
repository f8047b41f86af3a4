"""The page's process: what it answers, to whom, and how it goes on whatever others do to it."""

from __future__ import annotations

import os
import pwd
import random
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from cluster_agent.page import feed, page_server
from cluster_agent.page.snapshot import OTHERS
from cluster_agent.serve.people_protocol import BudgetView, JobRow, NodeRow
from tests.page.served import TOKEN, Served
from tests.page.synthetic_head import SyntheticHead

ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyntheticHead]:
    with SyntheticHead(tmp_path_factory.mktemp("head") / "head.sock") as head:
        yield head


@pytest.fixture(scope="module")
def served(head: SyntheticHead, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("page"), head.path, admins=("root", "operator")) as served:
        served.until(lambda: served.shown()["jobs"] and served.shown()["ended"])
        yield served


# --- who looks, and what that person sees


def users(rows: list[dict[str, str]]) -> set[str]:
    return {row["user"] for row in rows}


def test_a_user_sees_the_names_of_own_jobs_and_no_others(served: Served) -> None:
    shown = served.shown(served.proxy, "alice")
    for part in ("jobs", "running", "ended", "energy"):
        assert "alice" in users(shown[part]) and users(shown[part]) <= {"alice", OTHERS}, part
    others = [job for job in shown["jobs"] if job["user"] == OTHERS]
    assert others and {job["title"] for job in others} == {""} and {job["uid"] for job in others} == {-1}
    assert all(job["nodes"] for job in others), "how many nodes others have is no secret"
    assert "simulation 8" in {job["title"] for job in shown["jobs"] if job["user"] == "alice"}
    assert len(shown["jobs"]) == 10 and len(shown["ended"]) == 50


def test_an_administrator_sees_all_and_nobody_known_sees_no_name(served: Served) -> None:
    assert len(users(served.shown(served.proxy, "operator")["jobs"])) == 8
    for shown in (served.shown(served.proxy), served.shown(served.port)):
        assert [users(shown[part]) for part in ("jobs", "running", "ended", "energy")] == [{OTHERS}] * 4
        assert {change["who"] for change in shown["changes"]} == {OTHERS}
        assert "secret-program" not in str(shown) and "alice" not in str(shown)


def test_a_header_that_names_a_user_is_believed_on_the_proxys_socket_alone(served: Served) -> None:
    assert served.page("/", served.proxy, "bob")["viewer"] == {"user": "bob", "sees_all": False}
    assert served.page("/", served.port, "operator")["viewer"] == {"user": None, "sees_all": False}
    assert served.page("/", served.plain, "operator")["viewer"]["user"] == ME
    assert served.page(f"{TOKEN}/", served.own_port, "operator")["viewer"] == {"user": "alice", "sees_all": False}


@pytest.mark.parametrize("name", ["al ice", "alice, operator", "a" * 200, "x\ty", "(null)", OTHERS])
def test_a_header_that_cannot_be_a_user_is_refused(served: Served, name: str) -> None:
    assert served.get("/", served.proxy, name)[0] == 400


def test_two_headers_that_name_users_are_refused(served: Served) -> None:
    twice = b"GET / HTTP/1.1\r\nHost: x\r\nX-Remote-User: bob\r\nX-Remote-User: operator\r\n\r\n"
    assert served.raw(twice, served.proxy)[0] == 400


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_the_kernel_says_who_is_at_a_socket_and_the_proxys_is_for_the_proxy(head: SyntheticHead) -> None:
    """A user who connects to the proxy's socket could name anybody."""
    at = Path(tempfile.mkdtemp())
    at.chmod(0o755)
    try:
        with Served(at, head.path, admins=("operator",)) as one:
            one.until(lambda: one.shown(one.proxy, "operator")["jobs"])
            plain, proxy = (as_nobody(path) for path in (one.plain, one.proxy))
        found = msgspec.json.decode(plain.partition("\n\n")[2])
        assert found["viewer"] == {"user": "nobody", "sees_all": False}
        assert users(found["snapshot"]["jobs"]) == {OTHERS}
        assert proxy.startswith("HTTP/1.1 403 ") and "alice" not in proxy
    finally:
        shutil.rmtree(at)


def as_nobody(path: Path) -> str:
    """The answer to a request of user nobody, who says to be an administrator."""
    program = (
        f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r});"
        " s.sendall(b'GET / HTTP/1.0\\r\\nX-Remote-User: operator\\r\\n\\r\\n');"
        " print(b''.join(iter(lambda: s.recv(65536), b'')).decode())"
    )
    command = ["/usr/bin/python3", "-c", program]
    return subprocess.run(command, user=65534, group=65534, capture_output=True, text=True, check=True).stdout


def test_without_the_token_a_page_of_ones_own_shows_nothing(served: Served) -> None:
    assert len(served.page(f"{TOKEN}/", served.own_port)["snapshot"]["nodes"]) == 20
    for path in ("/", "/api/budget", "/tokem/", f"/x{TOKEN}/", TOKEN[:-1] + "/", "/%74oken"):
        assert served.get(path, served.own_port)[0] == 404, path
    assert served.get("/%74oken/", served.own_port)[0] == 200, "an escape is the same character"


@pytest.mark.parametrize("to", ["port", "plain", "own_port"])
def test_a_name_of_another_machine_is_refused_where_no_proxy_is(served: Served, to: str) -> None:
    path = f"{TOKEN}/" if to == "own_port" else "/"
    for host in ("evil.example", "localhost.evil.example:80", "127.0.0.1.nip.io", "10.0.0.1", "0.0.0.0", "2130706433"):
        assert served.get(path, getattr(served, to), host=host)[0] == 421
    for host in ("localhost:8080", "127.0.0.1", "[::1]:80", "LOCALHOST", "127.0.0.2:8099"):
        assert served.get(path, getattr(served, to), host=host)[0] == 200
    assert served.get("/", served.proxy, host="power.example.org")[0] == 200


def test_all_about_a_job_is_for_its_owner(served: Served) -> None:
    owned = served.page("/jobs/1", served.proxy, "bob")["snapshot"]["job"]
    assert owned[1]["spec"]["command"] == ["./secret-program", "--all"]
    for user in ("alice", ""):
        status, _, body = served.get("/jobs/1", served.proxy, user)
        assert status == 200 and b"secret-program" not in body
        assert served.get("/api/jobs/1", served.proxy, user)[0] == 404
    assert served.page("/jobs/1", served.proxy, "operator")["snapshot"]["job"][0]["user"] == "bob"


def test_programs_that_alarms_name_are_in_no_answer_to_a_user(tmp_path: Path) -> None:
    with SyntheticHead(tmp_path / "head.sock") as head, Served(tmp_path, head.path, admins=("root",)) as served:
        words = "1 node was set above the cap (r000n00: turbo of alice)"
        head.budget = replace(head.budget, alarms=[words], alarm_kinds=["raised"])
        served.until(lambda: served.shown(served.proxy, "root")["alarms"] and served.shown()["nodes"])
        for path in ("/api/alarms", "/api/budget", "/api/nodes/r000n00"):
            assert b"turbo" in served.get(path, served.proxy, "root")[2], path
            status, _, body = served.get(path, served.proxy, "bob")
            assert status == 200 and b"set above the cap" in body and b"turbo" not in body, path


def test_with_pseudonyms_nobody_sees_a_name_and_everybody_the_same_word(head: SyntheticHead, tmp_path: Path) -> None:
    with Served(tmp_path, head.path, admins=("operator",), key=b"k" * 32) as served:
        served.until(lambda: served.shown()["jobs"])
        everything = served.shown(served.proxy, "operator")
        own = served.page("/", served.proxy, "bob")
        job = served.page("/jobs/1", served.proxy, "operator")["snapshot"]["job"]
    assert users(own["snapshot"]["jobs"]) == {own["viewer"]["user"], OTHERS}
    assert own["viewer"]["user"] in users(everything["jobs"]) and len(users(everything["jobs"])) == 8
    for name in ("alice", "bob", "carol", "root"):
        assert name not in str([everything["jobs"], everything["energy"], everything["changes"], everything["ended"]])
    assert job[0]["user"] == job[1]["user"] == own["viewer"]["user"]
    assert "/home/bob" not in str(job) and "secret-program" not in str(job)


# --- what it answers


def test_every_answer_forbids_what_a_page_does_not_need(served: Served) -> None:
    for path, status in (("/", 200), ("/page.css", 200), ("/api/budget", 200), ("/nothing", 404), ("/crash", 500)):
        found, headers, _ = served.get(path)
        assert found == status
        policy = headers["content-security-policy"]
        for rule in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"):
            assert rule in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer" and "set-cookie" not in headers


def test_the_api_gives_the_structs_of_json(served: Served, head: SyntheticHead) -> None:
    def api(path: str, user: str = "operator") -> bytes:
        status, headers, body = served.get(f"/api/{path}", served.proxy, user)
        assert status == 200 and headers["content-type"] == "application/json"
        return body

    assert msgspec.json.decode(api("budget"), type=BudgetView) == head.budget
    rows = msgspec.json.decode(api("nodes"), type=list[NodeRow])
    assert [replace(row, heard_s_ago=None) for row in rows] == [replace(row, heard_s_ago=None) for row in head.nodes]
    jobs = msgspec.json.decode(api("jobs"), type=list[JobRow])
    assert [replace(row, took_s=None) for row in jobs] == [replace(row, took_s=None) for row in head.jobs]
    assert users(msgspec.json.decode(api("jobs", "alice"))) == {"alice", OTHERS}
    assert msgspec.json.decode(api("nodes/r000n00"))["words"] == "320 W, in proportion to its load"
    assert msgspec.json.decode(api("jobs/1"))["job"]["spec"]["command"] == ["./secret-program", "--all"]
    for name in msgspec.json.decode(api(""))["answers"]:
        msgspec.json.decode(api(name))
    for path in ("/api/nothing", "/api/nodes/none", "/api/jobs/none", "/api/jobs/99999", "/api/budget/x"):
        assert served.get(path, served.proxy, "operator")[0] == 404


def test_head_gets_the_same_headers_and_no_body(served: Served) -> None:
    _, wanted, body = served.get("/page.css")
    status, headers, none = served.get("/page.css", method="HEAD")
    assert (status, headers, none) == (200, wanted, b"") and headers["content-length"] == str(len(body))


def test_a_connection_is_used_again_also_for_requests_that_come_together(served: Served) -> None:
    one = b"GET /page.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served.connected() as peer:
        peer.sendall(one + one + one[:30])
        time.sleep(0.1)
        peer.sendall(one[30:-4] + b"\r\nConnection: close\r\n\r\n")
        got = b"".join(iter(lambda: peer.recv(65536), b""))
    assert got.count(b"HTTP/1.1 200 OK") == got.count(b"p {}") == 3


# --- what is no request


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"DELETE /api/jobs/1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
        (b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /?%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /?" + b"&".join(b"a%d=1" % i for i in range(99)) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET //etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /page.css/../page.css HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"GET /" + b"a" * 9000, 414),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"a" * 9000, 431),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_and_harms_nobody(served: Served, sent: bytes, status: int) -> None:
    found, headers, body = served.raw(sent)
    assert found == status and b"root:" not in body
    assert status == 404 or headers["connection"] == "close", "where the next request would begin is not certain"
    assert body.count(b"\n") == 1 and body.startswith(str(status).encode())
    assert served.get("/page.css")[0] == 200


def test_a_view_with_a_mistake_is_one_line_in_the_log(served: Served) -> None:
    for _ in range(3):
        status, _, body = served.get("/crash")
        assert status == 500 and b"a view with a mistake" not in body
    lines = [line for line in served.said if "/crash" in line]
    assert len(lines) == 1 and "ValueError: a view with a mistake" in lines[0]


def test_a_process_that_can_ask_no_more_ends_and_says_why(
    head: SyntheticHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that stays and never changes would be worse: systemd starts it again."""

    async def broken(_: feed.Feed) -> None:
        raise ArithmeticError("a mistake of ours")

    monkeypatch.setattr(feed.Feed, "run", broken)
    with pytest.raises(ArithmeticError), Served(tmp_path, head.path) as served:
        served.until(lambda: served.ended_by)
        raise served.ended_by[0]


# --- many, slow and dead readers


def test_one_connection_too_many_is_told_so_and_a_user_has_but_a_share(head: SyntheticHead, tmp_path: Path) -> None:
    with Served(tmp_path, head.path, most=8) as served:
        mine = [served.connected(served.plain) for _ in range(2)]
        served.until(lambda: len(served.server._open) == 2)
        assert served.get("/", served.plain)[0] == 503, "a fourth of eight"
        others = [served.connected() for _ in range(6)]
        served.until(lambda: len(served.server._open) == 8)
        status, headers, body = served.get("/", served.proxy, "alice")
        assert status == 503 and body.startswith(b"503") and headers["connection"] == "close"
        for peer in (*mine, *others):
            peer.close()
        served.until(lambda: served.get("/", served.proxy, "alice")[0] == 200)


def test_a_user_behind_a_proxy_has_but_a_share_of_the_streams(
    head: SyntheticHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "HEARTBEAT_S", 0.2)

    def follow(user: str) -> tuple[socket.socket, bytes]:
        peer = served.connected(served.proxy)
        peer.sendall(f"GET /updates?view=/ HTTP/1.1\r\nHost: x\r\nX-Remote-User: {user}\r\n\r\n".encode())
        return peer, peer.recv(15)

    with Served(tmp_path, head.path, most=8) as served:
        peers = [follow(user) for user in ("alice", "alice", "alice", "bob")]
        assert [begin[9:12] for _, begin in peers] == [b"200", b"200", b"503", b"200"], "a fourth of eight"
        assert served.get("/", served.proxy, "alice")[0] == 200, "a page is still to be seen"
        for peer, _ in peers:
            peer.close()
        served.until(lambda: not served.server._open)


def test_a_thousand_slow_readers_cost_nothing_and_are_dropped(
    head: SyntheticHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "HEAD_S", 1.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4000:
        pytest.skip("the limit of open files is below 4000: raise it (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4000), hard))
    try:
        with Served(tmp_path, head.path, most=100) as served:
            peers = []
            for _ in range(1000):
                peer = served.connected()
                peer.sendall(b"GET / HTTP/1.1\r\nHost: loc")
                peers.append(peer)
            served.until(lambda: len(served.server._open) <= 100 and served.get("/page.css")[0] == 200)
            assert served.shown(served.proxy, "alice")["nodes"]
            for peer in peers:
                peer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_viewer_who_never_reads_is_dropped_and_the_others_get_every_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "WRITE_S", 1.0)
    with SyntheticHead(tmp_path / "head.sock") as head, Served(tmp_path, head.path) as served:
        served.until(lambda: served.shown()["budget"])
        dead = served.connected()
        dead.sendall(b"GET /updates?view=/large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        served.until(lambda: len(served.server._open) == 1)
        with served.connected() as peer:
            events = begin(peer, "/")
            assert next(events)["budget"] == "8000.0"
            for watts in (7000.0, 6000.0):
                head.budget = replace(head.budget, budget_w=watts)
                began_s = time.monotonic()
                assert next(events) == {"budget": f"{watts}"}, "only what has changed"
                assert time.monotonic() - began_s < 3.0
            served.until(lambda: len(served.server._open) == 1)
        dead.close()


def begin(peer: socket.socket, view: str) -> Iterator[dict[str, str]]:
    """The events of a view."""
    peer.sendall(f"GET /updates?view={view} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    got = b""
    while b"\r\n\r\n" not in got:
        got += peer.recv(65536)
    head, _, got = got.partition(b"\r\n\r\n")
    assert b"200 OK" in head and b"text/event-stream" in head and b"default-src 'none'" in head
    while True:
        while b"\n\n" in got:
            line, _, got = got.partition(b"\n\n")
            if line.startswith(b"data: "):
                yield msgspec.json.decode(line[6:])
        part = peer.recv(1 << 20)
        assert part
        got += part


def test_a_stream_without_news_says_so_in_an_event_that_a_script_hears(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "HEARTBEAT_S", 0.0)
    with served.connected() as peer:
        events = begin(peer, "/jobs")
        assert next(events)["same"] == "same"
        assert peer.recv(10) == b"data: {}\n\n"


def test_partial_requests_end_by_themselves(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "HEAD_S", 0.2)
    monkeypatch.setattr(page_server, "IDLE_S", 0.2)
    for sent in (b"", b"G", b"GET / HTTP/1.1\r\nHost: localhost\r\n"):
        with served.connected() as peer:
            peer.sendall(sent)
            assert peer.recv(100) == b""


# --- what it costs the cluster agent


def test_fifty_viewers_ask_no_more_than_one(tmp_path: Path) -> None:
    with SyntheticHead(tmp_path / "head.sock") as head, Served(tmp_path, head.path, most=100) as served:
        served.until(lambda: served.shown()["jobs"])
        before, version = dict(head.answered), served.feed.version
        for number in range(50):
            assert served.get("/", served.proxy, f"user{number}")[0] == 200
        rounds = served.feed.version - version + 1
        for kind in ("budget", "node-changes", "job-changes"):
            assert head.answered[kind] - before[kind] <= rounds, kind


def test_details_of_one_thing_are_asked_for_a_few_times_a_second_at_most(tmp_path: Path) -> None:
    with SyntheticHead(tmp_path / "head.sock", nodes=100) as head, Served(tmp_path, head.path) as served:
        served.until(lambda: served.shown()["nodes"])
        began_s = time.monotonic()
        for number in range(60):
            status, _, body = served.get(f"/api/nodes/r000n{number:02d}")
            assert status == 200 or (status == 503 and b"try again" in body)
        seconds = int(time.monotonic() - began_s) + 2
        assert 0 < head.answered["why"] <= 5 * seconds < 60


def test_when_nobody_looks_hardly_anything_is_requested(tmp_path: Path) -> None:
    with SyntheticHead(tmp_path / "head.sock") as head, Served(tmp_path, head.path) as served:
        served.until(lambda: head.answered.get("node-changes"))
        time.sleep(2.5 * feed.POLL_S)
        assert head.answered["budget"] == head.answered["node-changes"] == 1 and "job-changes" not in head.answered
        began_s = time.monotonic()
        assert served.shown()["budget"], "what was said before"
        assert time.monotonic() - began_s < 2 * page_server.FIRST_S
        served.until(lambda: served.shown()["jobs"])


def test_the_process_outlives_the_cluster_agent_and_shows_since_when_it_is_gone(tmp_path: Path) -> None:
    head = SyntheticHead(tmp_path / "head.sock")
    with Served(tmp_path, head.path) as served:
        before = served.shown()
        assert before["budget"] is None and "no cluster agent" in before["lost_why"] and before["lost_since_s"]
        head.start()
        served.until(lambda: served.shown()["lost_since_s"] is None and served.shown()["jobs"])
        gone_s = time.time()
        head.stop()
        served.until(lambda: served.shown()["lost_since_s"] is not None)
        since_s = served.shown()["lost_since_s"]
        assert gone_s - 1.0 < since_s < gone_s + 5.0
        for path in ("/api/nodes/r000n00", "/api/jobs/1", "/jobs/99999"):
            status, _, body = served.get(path, served.proxy, "bob")
            assert status == 503 and b"not known now" in body, "it may well be there"
        assert served.get("/api/jobs/8", served.proxy, "bob")[0] == 404, "it is alice's"
        assert served.page("/jobs/1", served.proxy, "bob")["snapshot"]["jobs"], "its row is known"
        time.sleep(1.2)
        lost = served.shown()
        assert lost["lost_since_s"] == since_s and lost["taken_s"] <= since_s
        assert len(lost["nodes"]) == 20 and len(lost["jobs"]) == 10, "the last that it said"
        assert msgspec.json.decode(served.get("/api/state")[2])["lost_since_s"] == since_s
        head.start()
        served.until(lambda: served.shown()["lost_since_s"] is None)
        head.stop()


def test_a_cluster_agent_without_jobs_has_a_page(tmp_path: Path) -> None:
    with SyntheticHead(tmp_path / "h.sock", jobs=0, runs_jobs=False) as head, Served(tmp_path, head.path) as served:
        served.until(lambda: served.shown()["running"])
        shown = served.shown()
        assert shown["has_jobs"] is False and shown["jobs"] == [] and shown["lost_since_s"] is None


def test_ten_thousand_nodes_move_and_the_page_follows(tmp_path: Path) -> None:
    with SyntheticHead(tmp_path / "h.sock", 10_000, 100) as head, Served(tmp_path, head.path) as served:
        served.until(lambda: len(served.shown()["nodes"]) == 10_000)
        assert head.answered["node-changes"] >= 20, "a few nodes at a time"
        head.moves(random.Random(1))
        served.until(lambda: served.feed.snapshot.nodes[-1].draws_w == head.nodes[-1].draws_w)
