"""Links over real sockets with CURVE: who gets in, what is believed, and what a peer cannot do."""

import math
import os
import random
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import zmq

from cluster_agent.budget.kept_counts import DeposedError
from cluster_agent.cli import main
from cluster_agent.errors import ClusterError
from cluster_agent.fabric.allowed import Allowed, Entry
from cluster_agent.fabric.front_pipe import Send
from cluster_agent.fabric.router import BURST, LARGEST, Router
from foundation.shell.errors import UsageError
from foundation.wire.job_messages import (
    KINDS,
    MAX_START,
    JobForget,
    JobPart,
    JobQuery,
    JobSignal,
    JobStart,
    NodeJobs,
    read_job_message,
)
from foundation.wire.keys import KeyFileError, read_pair, read_public
from foundation.wire.link_options import HANDSHAKE_MS, PRESENCE
from foundation.wire.power_messages import (
    MAX_BYTES,
    OLDEST,
    PROTOCOL,
    Envelope,
    Grant,
    Report,
    WireError,
    pack,
    read_grant,
    read_report,
    unpack,
)
from nodectl.member import cluster_link
from nodectl.member.cluster_link import ClusterLink
from tests.fabric.links import DECLARED, Fabric, grant, pair, report

ROOT = Path(__file__).parents[2]


def news(node: str = "n0") -> NodeJobs:
    return NodeJobs(node, "boot-1", [JobPart(7, 1, "running", started_s=1.0)])


def job_start(script: str) -> JobStart:
    return JobStart(1, 1, 0, ["a"], script, "/", "out", "", {}, 60, 1, "", "", 0, ["n0"])


def test_a_report_goes_up_and_a_grant_comes_down(tmp_path):
    with Fabric(tmp_path) as fabric:
        link = fabric.link("n0")
        assert fabric.tell(link, report()) == report()
        assert fabric.router.send(grant())
        got = []
        fabric.until(lambda: got.extend(link.receive()) or got)
        assert got == [grant()]
        assert link.is_up


def test_a_node_is_who_its_key_is_whatever_it_calls_itself(tmp_path):
    with Fabric(tmp_path) as fabric:
        honest, liar = fabric.link("n0"), fabric.link("n1")
        fabric.tell(honest, report("n0"))
        assert fabric.tell(liar, report("n0", 2)).node == "n1"
        assert any("calls itself 'n0'" in line for line in fabric.said)
        fabric.router.send(grant("n0"))
        got = []
        fabric.until(lambda: got.extend(honest.receive()) or got)
        assert liar.receive() == []


def test_a_key_that_is_not_on_the_list_gets_no_message_through(tmp_path):
    with Fabric(tmp_path) as fabric:
        stranger = fabric.link("n0", pair())
        stranger.send(report())
        fabric.until(lambda: stranger.receive() or "list" in stranger.why_down)
        assert fabric.heard == []
        assert any("not on" in line for line in fabric.said)


def test_a_node_does_not_speak_to_a_cluster_agent_with_another_key(tmp_path):
    with Fabric(tmp_path) as fabric:
        link = ClusterLink(fabric.router.url, fabric.allow("n0"), pair().public)
        try:
            link.send(report())
            fabric.until(lambda: link.receive() or "handshake" in link.why_down)
            assert fabric.heard == []
        finally:
            link.close()


def test_a_refused_node_joins_without_a_restart_once_its_key_is_on_the_list(tmp_path, monkeypatch):
    """Libzmq takes a refusal for final: it makes no other try on its own."""
    monkeypatch.setattr(cluster_link, "REFUSED_S", 0.2)
    with Fabric(tmp_path) as fabric:
        keys = pair()
        link = fabric.link("n0", keys)
        fabric.until(lambda: link.receive() or "not on its list" in link.why_down)
        fabric.allowed.allow(Entry("node", "n0", keys.public))

        def joins() -> bool:
            fabric.now_s += 0.1
            link.send(report(report_id=2))
            link.receive()
            return bool(fabric.heard)

        fabric.until(joins)
        assert link.is_up


def test_a_revoked_key_is_not_heard_any_more_on_an_open_connection_either(tmp_path):
    with Fabric(tmp_path) as fabric:
        link = fabric.link("n0")
        fabric.tell(link, report())
        fabric.allowed.revoke("n0")
        link.send(report(report_id=2))
        fabric.until(lambda: any("revoked" in line for line in fabric.said))
        assert len(fabric.heard) == 1


def test_a_revoked_key_gets_neither_grants_nor_jobs_any_more_on_an_open_connection_either(tmp_path):
    with Fabric(tmp_path) as fabric:
        link, other = fabric.link("n0"), fabric.link("n1")
        fabric.tell(link, report())
        fabric.tell(other, report("n1"))
        fabric.allowed.revoke("n0")
        assert not fabric.router.send(grant()) and not fabric.router.send_job("n0", job_start("secret"))
        assert fabric.router.unsent == 2
        assert fabric.router.send(grant("n1")) and fabric.router.send_job("n1", job_start(""))
        renewed = fabric.link("n0", fabric.allow("n0"))
        fabric.tell(renewed, report(report_id=2))
        assert fabric.router.send(grant())
        got = []
        fabric.until(lambda: got.extend(renewed.receive()) or got)
        assert got == [grant()] and link.receive() == [] and link.job_messages() == []


def test_a_key_of_another_role_reports_nothing(tmp_path):
    with Fabric(tmp_path) as fabric:
        fabric.allow("alice", "admin")
        link = fabric.link("alice")
        link.send(report("alice"))
        fabric.until(lambda: link.receive() or any("role admin" in line for line in fabric.said))
        assert fabric.heard == []


def test_a_peer_that_floods_is_limited_to_its_rate_and_the_others_are_heard(tmp_path):
    with Fabric(tmp_path) as fabric:
        flood, quiet = fabric.dealer("n1"), fabric.link("n0")
        frame = pack("report", report("n1"))
        sent = 0
        while sent < 500:
            try:
                flood.send(frame, zmq.NOBLOCK)
                sent += 1
            except zmq.Again:
                fabric.pump()
        quiet.send(report("n0"))
        fabric.until(lambda: quiet.receive() or any(one.node == "n0" for one in fabric.heard))
        fabric.until(lambda: any("messages a second" in line for line in fabric.said))
        assert sum(one.node == "n1" for one in fabric.heard) == BURST
        flood.close(0)


def test_an_oversized_frame_ends_its_connection_and_nothing_else(tmp_path):
    with Fabric(tmp_path) as fabric:
        big, link = fabric.dealer("n1"), fabric.link("n0")
        fabric.tell(link, report("n0"))
        big.send(b"x" * (LARGEST + 1000))
        for _ in range(20):
            fabric.pump()
        fabric.tell(link, report("n0", 2))
        assert [one.node for one in fabric.heard] == ["n0", "n0"]
        assert fabric.said == [], "it was never handed up"
        big.close(0)


def test_nodes_that_are_queried_say_what_runs_and_get_what_to_run(tmp_path):
    with Fabric(tmp_path) as fabric:
        link, older = fabric.link("n0"), fabric.dealer("n1")
        fabric.tell(link, report())
        link.send_jobs(news())
        assert not link.wants_jobs
        assert fabric.router.send_job("n0", JobQuery())
        fabric.until(lambda: link.receive() or link.wants_jobs)
        link.send_jobs(news())
        got = []
        fabric.until(lambda: got.extend(fabric.router.job_news()) or got)
        assert got == [news()]
        start = job_start("x" * 60_000)
        for message in (start, JobSignal(1, 1, 15), JobForget(1, 1)):
            assert fabric.router.send_job("n0", message)
        told = []
        fabric.until(lambda: link.receive() or told.extend(link.job_messages()) or len(told) == 3)
        assert told == [start, JobSignal(1, 1, 15), JobForget(1, 1)]
        # one that is older than jobs gets no message of them
        older.send(msgspec.msgpack.encode([OLDEST, OLDEST, "report", msgspec.to_builtins(report("n1"))]))
        fabric.until(lambda: any(one.node == "n1" for one in fabric.heard))
        assert not fabric.router.speaks_jobs("n1") and not fabric.router.send_job("n1", JobQuery())
        older.close(0)


def test_what_is_said_of_jobs_is_said_under_the_name_of_the_key_and_by_nodes_only(tmp_path):
    with Fabric(tmp_path) as fabric:
        fabric.allow("alice", "admin")
        liar, admin = fabric.dealer("n1"), fabric.dealer("alice")
        for one in (liar, admin):
            one.send(pack("jobs", news("n0"), PROTOCOL))
        got = []
        fabric.until(lambda: got.extend(fabric.router.job_news()) or (got and fabric.router.dropped >= 2))
        assert [one.node for one in got] == ["n1"]
        assert any("role admin" in line for line in fabric.said)
        for one in (liar, admin):
            one.close(0)


def test_job_messages_that_are_too_large_or_none_are_dropped_and_counted(tmp_path):
    dice = random.Random(11)
    with Fabric(tmp_path) as fabric:
        rude, link = fabric.dealer("n1"), fabric.link("n0")
        whole = pack("jobs", news("n1"), PROTOCOL)
        padded = pack("report", report("n1", boot_id="x"))
        hostile = [
            msgspec.msgpack.encode([PROTOCOL, PROTOCOL, "report", {"boot_id": "x" * MAX_BYTES}]),
            msgspec.msgpack.encode([PROTOCOL, PROTOCOL, "jobs", {"node": "n1", "boot_id": "b", "parts": [{}] * 17}]),
            msgspec.msgpack.encode([PROTOCOL, PROTOCOL, "job-start", msgspec.to_builtins(job_start(""))]),
            msgspec.msgpack.encode([PROTOCOL, PROTOCOL, "jobs", {"node": "n1", "boot_id": "b" * 1000, "parts": []}]),
            *(whole[: dice.randrange(len(whole))] for _ in range(30)),
        ]
        assert len(hostile[0]) > MAX_BYTES and unpack(padded)
        for frame in hostile:
            fabric.now_s += 1.0
            rude.send(frame)
            n = fabric.router.dropped
            fabric.until(lambda n=n: fabric.router.dropped > n)
        assert fabric.router.dropped == len(hostile) and fabric.router.job_news() == []
        fabric.tell(link, report("n0"))
        rude.close(0)


def test_a_start_that_is_too_large_for_a_node_ends_at_its_link_and_the_node_goes_on(tmp_path):
    with Fabric(tmp_path) as fabric:
        link = fabric.link("n0")
        fabric.tell(link, report("n0"))
        way = fabric.router._ways["n0"].connection
        for frame in (
            msgspec.msgpack.encode([PROTOCOL, PROTOCOL, "job-signal", {"job": 1, "x": "y" * MAX_BYTES}]),
            msgspec.msgpack.encode([PROTOCOL, PROTOCOL, "job-start", {"job": 0}]),
            random.Random(3).randbytes(MAX_START // 2),
        ):
            n = link.dropped
            assert fabric.router._front.send(Send(way, frame))
            fabric.until(lambda n=n: link.receive() or link.dropped > n)
        assert link.job_messages() == [] and not link.wants_jobs
        assert fabric.tell(link, report("n0", 2)).report_id == 2


def test_garbage_is_dropped_however_much_comes_while_others_are_heard(tmp_path):
    dice = random.Random(7)
    with Fabric(tmp_path) as fabric:
        rude, link = fabric.dealer("n1"), fabric.link("n0")
        whole = pack("report", report("n1"))
        n = 0
        while n < 1000:
            fabric.now_s += 10.0  # so that its allowance is never what keeps it out
            flipped = bytearray(whole)
            flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
            parts = dice.choice(
                (
                    [dice.randbytes(dice.randrange(200))],
                    [bytes(flipped)],
                    [whole[: dice.randrange(len(whole))]],
                    [b"\x94" * dice.randrange(3000)],
                    [whole, dice.randbytes(8)],
                    [b""],
                )
            )
            try:
                rude.send_multipart(parts, zmq.NOBLOCK)
                n += 1
            except zmq.Again:
                pass
            fabric.pump()
        fabric.tell(link, report("n0"))
        assert {one.node for one in fabric.heard} <= {"n0", "n1"}, "whatever it said, it was said by n1"
        assert len(fabric.said) < 60, "nor did it fill the log"
        rude.close(0)


def test_bytes_that_are_not_even_zmtp_do_no_harm(tmp_path):
    dice = random.Random(3)
    with Fabric(tmp_path) as fabric:
        host, port = fabric.router.url.removeprefix("tcp://").split(":")
        for _ in range(30):
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(dice.randbytes(dice.randrange(1, 300)))
            fabric.pump()
        fabric.tell(fabric.link("n0"), report("n0"))
        assert [one.node for one in fabric.heard] == ["n0"]


def test_a_connection_that_never_shakes_hands_is_given_up(tmp_path, monkeypatch):
    options = dict(PRESENCE)
    assert options[zmq.HANDSHAKE_IVL] == HANDSHAKE_MS
    options[zmq.HANDSHAKE_IVL] = 200
    monkeypatch.setattr("cluster_agent.fabric.router.PRESENCE", tuple(options.items()))
    with Fabric(tmp_path) as fabric:
        host, port = fabric.router.url.removeprefix("tcp://").split(":")
        files = Path(f"/proc/{fabric.router.front_pid}/fd")
        before = len(list(files.iterdir()))
        raw = [socket.create_connection((host, int(port)), timeout=HANDSHAKE_MS / 2000) for _ in range(20)]
        for one in raw:
            while one.recv(100):  # its greeting, and then the end
                pass
        fabric.until(lambda: len(list(files.iterdir())) <= before)
        for one in raw:
            one.close()


def test_a_connection_cannot_take_a_name_of_its_own(tmp_path):
    with Fabric(tmp_path) as fabric:
        made = fabric.dealer("n1", identity=b"n0")
        made.send(pack("report", report("n1")))
        fabric.until(lambda: any("name of its own" in line for line in fabric.said))
        assert fabric.heard == []
        made.close(0)


def test_a_slow_reader_loses_grants_and_keeps_nobody_waiting(tmp_path):
    with Fabric(tmp_path) as fabric:
        slow = fabric.dealer("n1", rcvhwm=1, rcvbuf=4096)
        slow.send(pack("report", report("n1")))
        fabric.until(lambda: fabric.heard)
        began = time.monotonic()
        sent = [fabric.router.send(grant("n1", sequence)) for sequence in range(1, 30_000)]
        assert time.monotonic() - began < 60.0, "2 ms each"
        fabric.until(lambda: fabric.router.unsent + sent.count(False) > 0)
        fabric.tell(fabric.link("n0"), report("n0"))
        slow.close(0)


def test_a_link_that_is_down_keeps_only_the_newest_report(tmp_path):
    with Fabric(tmp_path) as fabric:
        link = fabric.link("n0")
        for report_id in (1, 2, 3):
            link.send(report(report_id=report_id))
        fabric.until(lambda: link.receive() or fabric.heard)
        assert [one.report_id for one in fabric.heard] == [3]
        assert link.dropped == 2


def test_a_link_comes_back_by_itself_when_its_cluster_agent_does(tmp_path):
    with Fabric(tmp_path) as fabric:
        link = fabric.link("n0")
        fabric.tell(link, report())
        url = fabric.router.url
        fabric.router.close()
        fabric.router = Router(url, fabric.keys, fabric.allowed, fabric.said.append)
        ids = iter(range(2, 10_000))  # those sent before it has noticed are lost, as any message may be

        def heard_again() -> bool:
            link.send(report(report_id=next(ids)))
            return link.receive() or len(fabric.heard) > 1

        fabric.until(heard_again)
        assert fabric.heard[-1].report_id > 1


def test_one_older_version_of_the_protocol_is_understood_and_no_other():
    body = msgspec.to_builtins(report())
    newer = ("energy_mj", "asked_mw", "tag", "quality", "useful_mw")
    older = {key: value for key, value in body.items() if key not in newer}
    encode = msgspec.msgpack.encode
    envelope = unpack(encode([OLDEST, OLDEST, "report", older]))
    assert read_report(envelope) == msgspec.structs.replace(report(), quality="missing")
    newer = body | {"a_field_that_came_later": 1}
    assert read_report(unpack(encode([PROTOCOL, PROTOCOL + 1, "report", newer]))) == report()
    for version in (OLDEST - 1, PROTOCOL + 1):
        with pytest.raises(WireError, match="protocol version"):
            unpack(encode([version, version, "report", body]))


def test_a_message_is_written_in_the_newest_version_that_both_sides_know():
    def version(speaks: int) -> int:
        return msgspec.msgpack.decode(pack("report", report(), speaks), type=Envelope).version

    assert [version(speaks) for speaks in (OLDEST, PROTOCOL, PROTOCOL + 1)] == [OLDEST, PROTOCOL, PROTOCOL]


@pytest.mark.parametrize(
    "wrong", [{"mop_mw": 0}, {"mop_mw": 600_000}, {"safe_mw": 600_000}, {"tdp_mw": -1}, {"tdp_mw": 10**12}]
)
def test_a_report_of_a_node_that_cannot_be_is_none(wrong):
    declared = msgspec.structs.replace(DECLARED, **wrong)
    with pytest.raises(WireError):
        read_report(unpack(pack("report", report(declaration=declared))))


@pytest.mark.parametrize("wrong", [-2, 10**9 + 1, 200_000.5, math.nan, math.inf, "200000", None])
def test_watts_are_whole_numbers_of_milliwatts_that_a_node_can_have_or_the_message_is_none(wrong):
    made = msgspec.to_builtins(report())
    granted = msgspec.to_builtins(Grant("n0", 1, "b1", 1, 300_000, 1, 1))
    with pytest.raises(WireError):
        read_report(unpack_fields("report", made | {"limit_mw": wrong}))
    with pytest.raises(WireError):
        read_report(unpack_fields("report", made | {"power_mw": wrong}))
    with pytest.raises(WireError):
        read_report(unpack_fields("report", made | {"useful_mw": wrong}))
    with pytest.raises(WireError):
        read_grant(unpack_fields("grant", granted | {"cap_mw": wrong}))
    assert read_report(unpack_fields("report", made)) and read_grant(unpack_fields("grant", granted))


@pytest.mark.parametrize("field", ["started_s", "ended_s", "slowdown"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 1e300, -1.0])
def test_a_time_or_slowdown_that_cannot_be_makes_the_message_none(field, wrong):
    made = msgspec.to_builtins(NodeJobs("n0", "b1", [JobPart(7, 1, "ended", started_s=1.0, ended_s=2.0)]))
    assert read_job_message(unpack_fields("jobs", made)).parts[0].ended_s == 2.0
    made["parts"][0][field] = wrong
    with pytest.raises(WireError):
        read_job_message(unpack_fields("jobs", made))


def test_every_float_that_a_message_can_carry_is_bounded():
    unbounded = []
    for kind in (Report, Grant, *KINDS.values(), JobPart):
        for field in msgspec.inspect.type_info(kind).fields:
            for one in getattr(field.type, "types", (field.type,)):
                if isinstance(one, msgspec.inspect.FloatType) and None in (one.ge, one.le):
                    unbounded.append(f"{kind.__name__}.{field.name}")
    assert unbounded == []


def unpack_fields(kind, fields):
    return unpack(msgspec.msgpack.encode([PROTOCOL, PROTOCOL, kind, fields]))


def test_without_keys_only_loopback_is_served_and_only_on_request(tmp_path):
    for is_insecure, url in ((False, "tcp://127.0.0.1:*"), (True, "tcp://0.0.0.0:*")):
        with pytest.raises(UsageError):
            Router(url, None, Allowed(tmp_path), is_insecure=is_insecure)
        with pytest.raises(UsageError):
            ClusterLink(url.replace("*", "1"), None, None, is_insecure)
    Router("tcp://127.0.0.1:*", None, Allowed(tmp_path), is_insecure=True).close()


def test_an_address_in_use_is_one_line(tmp_path):
    with Fabric(tmp_path) as fabric, pytest.raises(ClusterError, match="cannot listen"):
        Router(fabric.router.url, fabric.keys, fabric.allowed)


def test_keys_are_made_listed_and_revoked_by_command(tmp_path, capsys):
    at = ["--dir", str(tmp_path)]
    assert main(["keys", "new", "n1", "--role", "node", *at]) == 0
    assert stat.S_IMODE(os.stat(tmp_path / "n1.key").st_mode) == 0o600
    assert main(["keys", "new", "n1", *at]) == 1, "a key is never overwritten"
    assert main(["keys", "new", "bob", *at]) == 0
    assert main(["keys", "allow", "bob", "--role", "viewer", *at]) == 0
    assert main(["keys", "allow", "eve", "--role", "root", *at]) == 2
    assert main(["keys", "new", "../x", *at]) == 2
    capsys.readouterr()
    assert main(["keys", "list", "--json", *at]) == 0
    listed = msgspec.json.decode(capsys.readouterr().out)
    assert [(one["role"], one["name"]) for one in listed] == [("node", "n1"), ("viewer", "bob")]
    assert listed[0]["public"] == read_public(str(tmp_path / "n1.key")) == read_pair(tmp_path / "n1.key").public
    assert main(["keys", "revoke", "n1", *at]) == 0
    assert main(["keys", "revoke", "n1", *at]) == 2
    assert [entry.name for entry in Allowed(tmp_path).entries()] == ["bob"]


def test_a_secret_key_that_others_may_read_is_refused(tmp_path):
    assert main(["keys", "new", "n1", "--dir", str(tmp_path)]) == 0
    os.chmod(tmp_path / "n1.key", 0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        read_pair(tmp_path / "n1.key")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files that belong to another user")
def test_a_key_made_by_root_belongs_to_the_owner_of_its_directory(tmp_path, capsys):
    os.chown(tmp_path, 64990, 64991)
    at = ("--dir", str(tmp_path))
    assert main(["keys", "new", "cluster", *at]) == main(["keys", "new", "n1", "--role", "node", *at]) == 0
    assert main(["keys", "new", "n2", "--role", "node", *at]) == main(["keys", "revoke", "n2", *at]) == 0
    made = {path.name: path.stat() for path in tmp_path.iterdir()}
    assert made.keys() == {"cluster.key", "n1.key", "n2.key", "allowed"}
    assert {(one.st_uid, one.st_gid, one.st_mode & 0o777) for one in made.values()} == {(64990, 64991, 0o600)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files that belong to another user")
def test_the_owner_of_the_keys_cannot_get_another_file_by_a_link(tmp_path):
    directory, foreign = tmp_path / "keys", tmp_path / "shadow"
    directory.mkdir()
    os.chown(directory, 64990, 64990)
    foreign.write_text("secret")
    for name in ("allowed.new", "n1.key"):
        (directory / name).symlink_to(foreign)
    assert main(["keys", "new", "n1", "--dir", str(directory)]) == 1
    assert main(["keys", "new", "n2", "--role", "node", "--dir", str(directory)]) == 0
    assert (foreign.read_text(), foreign.stat().st_uid) == ("secret", 0)


def test_who_may_read_the_list_of_keys_may_read_the_next_one(tmp_path):
    at = ("--dir", str(tmp_path))
    for mode, expected in ((None, 0o600), (0o644, 0o644), (0o666, 0o644), (0o640, 0o640), (0o600, 0o600)):
        if mode is not None:
            os.chmod(tmp_path / "allowed", mode)
        assert main(["keys", "new", f"n{mode}", "--role", "node", *at]) == 0
        assert (tmp_path / "allowed").stat().st_mode & 0o777 == expected


def test_a_damaged_list_of_keys_names_file_and_line(tmp_path):
    (tmp_path / "allowed").write_text("node n1 short\n")
    with pytest.raises(ClusterError, match=r"allowed:1: not ROLE NAME PUBLIC-KEY"):
        Allowed(tmp_path).entries()


VANISHING_NODE = """
rude = fabric.dealer("n1")
rude.send(pack("report", report("n1")))
fabric.until(lambda: fabric.heard[-1].node == "n1")
for n in range(40):
    rude.send(bytes(3000))
time.sleep(0.5)
rude.close(0)
"""
VANISHING_CLUSTER_AGENT = """
for n in range(40):
    fabric.router.send(grant("n0", n))
    time.sleep(0.01)
fabric.router.close()
"""


@pytest.mark.parametrize("vanishing", [VANISHING_NODE, VANISHING_CLUSTER_AGENT])
def test_a_peer_that_vanishes_with_its_messages_unread_takes_nobody_along(tmp_path, vanishing):
    """libzmq 4.3.5 aborts a process whose heartbeat is due on such a connection."""
    script = f"""
import sys, time, pathlib
from foundation.wire.power_messages import pack
from tests.fabric.links import Fabric, grant, report
fabric = Fabric(pathlib.Path(sys.argv[1]))
fabric.tell(fabric.link("n0"), report("n0"))
{vanishing}
time.sleep(3.0)
print("alive", flush=True)
"""
    made = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
    with made:
        assert made.stdout is not None
        assert made.stdout.readline() == b"alive\n"
        made.kill()


def test_the_unit_comes_back_however_often_it_ends_but_not_against_its_successor():
    lines = (ROOT / "systemd" / "clusterctl.service").read_text().splitlines()
    assert {"StartLimitIntervalSec=0", "Restart=on-failure", "RestartPreventExitStatus=2"} <= set(lines)
    assert DeposedError.exit_status == 2
