"""Slurm's queue in the shapes of several versions, and what follows from it. The samples are ours, in the shapes of
version 22.05, which test_real_slurm.py has for real, and of what 23.02, 23.11 and 24.05 describe."""

from __future__ import annotations

import json
import math
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.slurm_kills import slurms_loss
from cluster_agent.errors import ClusterError
from cluster_agent.jobs.foreign_jobs import ForeignJob, ForeignJobs
from cluster_agent.serve.people_protocol import NotifyEnd, NotifyStart
from cluster_agent.slurm.follow import Follower, compare
from cluster_agent.slurm.queue_json import ELSEWHERE, ON_NODES, QueuedJob, jobs_on_nodes
from cluster_agent.slurm.queue_source import QueueSource

SUBMITTED_S = 1_795_909_975


def plain(number: int | None) -> int | None:
    return number


def wrapped(number: int | None) -> dict[str, Any]:
    return {"set": number is not None, "infinite": False, "number": number or 0}


VERSIONS = {
    "22.05": (plain, lambda words: words[-1]),
    "23.02": (plain, lambda words: words[-1]),
    "23.11": (wrapped, lambda words: words),
    "24.05": (wrapped, lambda words: words),
}


def row(version: str, number: int = 17, words: tuple[str, ...] = ("RUNNING",), **changes: Any) -> dict[str, Any]:
    count, state = VERSIONS[version]
    return {
        "job_id": number, "job_state": state(list(words)), "submit_time": count(SUBMITTED_S), "restart_cnt": 1,
        "nodes": "n[01-02]", "user_name": "alice", "name": "solve", "comment": "x nodectl=Memory", "cluster": "hpc",
        "partition": "batch",
        "array_task_id": count(None),
    } | changes  # fmt: skip


def text(*rows: dict[str, Any], **more: Any) -> str:
    return json.dumps({"meta": {}, "errors": [], "jobs": list(rows)} | more)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_running_job_is_read_in_the_shape_of_each_version(version: str) -> None:
    nodes = frozenset({"n01", "n02"})
    expected = QueuedJob("17", "n[01-02]", nodes, SUBMITTED_S, 1, "alice", "solve", "memory", "hpc", "batch")
    assert jobs_on_nodes(text(row(version))) == ([expected], [])


def test_a_tag_counts_wherever_it_stands_next_to_a_mode() -> None:
    comments = ("nodectl=optimize nodectl=memory", "nodectl=compute, nodectl=off", "nodectl=monitor", "nodectl=odd")
    rows = [row("22.05", number, comment=comment) for number, comment in enumerate(comments, 1)]
    assert [job.tag for job in jobs_on_nodes(text(*rows))[0]] == ["memory", "compute", "", ""]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("word", sorted(ELSEWHERE | ON_NODES))
def test_a_job_has_nodes_in_some_states_only(version: str, word: str) -> None:
    found, unknown = jobs_on_nodes(text(row(version, words=(word,))))
    assert (len(found), unknown) == (word in ON_NODES, [])


def test_an_unknown_state_counts_as_running_and_is_named() -> None:
    found, unknown = jobs_on_nodes(text(row("24.05", words=("TELEPORTED",)), row("24.05", 18, nodes="")))
    assert ([job.job for job in found], unknown) == (["17"], ["TELEPORTED"])
    lines: list[str] = []
    follower = Follower(
        list, lambda: jobs_on_nodes(text(row("24.05", words=("TELEPORTED",)))), lambda _: None, lines.append, "hpc"
    )
    assert follower.turn() and follower.turn()
    assert lines == ["job states that are not known here, taken for running: TELEPORTED"]


@pytest.mark.parametrize(
    "answer",
    [
        "", "no json", "[]", "{}", '{"jobs": 3}', '{"jobs": [3]}', '{"jobs": [{}]}', "[" * 100_000, '{"jobs": [null]}',
        text(row("22.05", submit_time="soon")), text(row("22.05", submit_time={"set": True})),
        text(row("22.05", restart_cnt=True)), text(row("22.05", submit_time=math.inf)),
        text(row("23.11", job_id={"set": True, "number": 1e300})),
        text(row("22.05", nodes="n[9-1]")), text(row("22.05", nodes="n[1-")),
        text(errors=[{"error": "slurmctld is gone"}]), text(errors=["gone"]),
    ],
)  # fmt: skip
def test_json_that_is_no_queue_is_one_line_and_ends_no_job(answer: str) -> None:
    with pytest.raises(ClusterError) as refused:
        jobs_on_nodes(answer)
    assert "\n" not in str(refused.value)
    sent: list[object] = []
    lines: list[str] = []
    follower = Follower(
        lambda: [ForeignJob("17", ["n01"], cluster="hpc")],
        lambda: jobs_on_nodes(answer),
        sent.append,
        lines.append,
        "hpc",
    )
    assert (follower.turn(), follower.turn(), sent, len(lines)) == (False, False, [], 1)
    assert lines[0].endswith("; jobs that are known go on")


def job(
    number: str, nodes: str = "n01", submitted_s: int = SUBMITTED_S, restarts: int = 0, cluster: str = "hpc"
) -> QueuedJob:
    return QueuedJob(number, nodes, frozenset(nodes.split(",")), submitted_s, restarts, "alice", "solve", "", cluster)


def known(number: str, *nodes: str, submitted_s: int = SUBMITTED_S, restarts: int = 0) -> ForeignJob:
    return ForeignJob(number, list(nodes) or ["n01"], "memory", "hpc", submitted_s, restarts)


def test_nothing_is_sent_of_what_is_known_already() -> None:
    assert compare([known("1"), known("2", "n03")], [job("1"), job("2", "n03,gpu1")]) == ([], [])


def test_the_number_of_a_lost_job_that_slurm_gives_again_is_another_job() -> None:
    """slurmctld, killed, forgot job 1035 whose prolog had run, and gave its number to the next one."""
    ends, starts = compare([known("1035", "n01")], [job("1035", "n02", SUBMITTED_S + 60)])
    assert ends == [] and [(one.job, one.node_list, one.submitted_s) for one in starts] == [
        ("1035", "n02", SUBMITTED_S + 60)
    ]


@pytest.mark.parametrize(
    "other",
    [
        job("1", restarts=1),
        job("1", submitted_s=SUBMITTED_S + 1),
        job("1", nodes="n02"),
        job("1", submitted_s=SUBMITTED_S - 1),
    ],
)
def test_a_run_with_another_key_or_other_nodes_takes_the_place_of_the_one_that_is_known(
    other: QueuedJob, tmp_path: Path
) -> None:
    stored = ForeignJobs(tmp_path / "notices")
    stored.start(known("1"), ["n01", "n02"])
    ends, starts = compare(stored.all(), [other])
    for one in starts:
        nodes = one.node_list.split(",")
        stored.start(ForeignJob(one.job, nodes, one.tag, one.cluster, one.submitted_s, one.restarts), ["n01", "n02"])
    (now,) = stored.all()
    assert ends == [] and (now.submitted_s, now.restarts, set(now.nodes)) == (
        other.submitted_s,
        other.restarts,
        other.nodes,
    )
    assert compare(stored.all(), [other]) == ([], [])


def test_a_job_that_is_gone_is_ended_by_its_whole_key() -> None:
    assert compare([known("1", restarts=2)], []) == ([NotifyEnd("1", "hpc", SUBMITTED_S, 2)], [])


jobs_of_numbers = st.dictionaries(
    st.sampled_from(["1", "2", "3"]),
    st.tuples(st.sampled_from(["n01", "n02", "n01,n02"]), st.integers(1, 3), st.integers(0, 2)),
)


@given(jobs_of_numbers, jobs_of_numbers)
def test_after_one_comparison_the_cluster_agent_knows_the_queue(before: Any, now: Any) -> None:
    """Whatever was known, and whichever notices were lost."""
    queue = [job(number, *values) for number, values in now.items()]
    noticed = {number: known(number, *nodes.split(","), submitted_s=submitted_s, restarts=restarts)
               for number, (nodes, submitted_s, restarts) in before.items()}  # fmt: skip
    ends, starts = compare(noticed.values(), queue)
    for end in ends:
        one = noticed[end.job]
        assert not one.is_later_than(end.submitted_s, end.restarts), "the cluster agent would not end it"
        del noticed[end.job]
    for start in starts:
        noticed[start.job] = known(
            start.job, *start.node_list.split(","), submitted_s=start.submitted_s, restarts=start.restarts
        )
    assert {number: (set(one.nodes) <= set(now[number][0].split(",")), one.submitted_s, one.restarts)
            for number, one in noticed.items()} == {
        number: (True, submitted_s, restarts) for number, (_, submitted_s, restarts) in now.items()
    }  # fmt: skip


def test_a_job_without_nodes_of_ours_is_notified_once_and_one_that_grows_again() -> None:
    sent: list[Any] = []
    queue = [job("1", "gpu1")]
    read = lambda: text(*(row("22.05", int(one.job), nodes=one.node_list, comment="") for one in queue))  # noqa: E731
    follower = Follower(list, lambda: jobs_on_nodes(read()), sent.append, lambda line: None, "hpc")
    assert [follower.turn() for _ in range(3)] == [True] * 3
    assert [type(one) for one in sent] == [NotifyStart]
    queue[0] = job("1", "gpu[1-2]")
    follower.turn()
    assert [one.node_list for one in sent] == ["gpu1", "gpu[1-2]"]


def test_a_job_that_starts_during_a_comparison_is_not_taken_for_one_that_is_gone() -> None:
    """What is known is asked for before the queue: in the other order a job that starts in between would be ended."""
    order: list[str] = []
    Follower(
        lambda: order.append("known") or [],  # type: ignore[func-returns-value]
        lambda: order.append("queue") or ([], []),  # type: ignore[func-returns-value]
        lambda _: None,
        lambda line: None,
        "hpc",
    ).turn()
    assert order == ["known", "queue"]


def test_slurmrestd_is_asked_in_the_newest_version_that_it_has_and_squeue_where_it_is_not(tmp_path: Path) -> None:
    paths: list[str] = []
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\necho '{text(row('22.05'))}'\n")
    squeue.chmod(0o755)
    source = QueueSource(tmp_path / "rest", str(squeue))
    assert len(jobs_on_nodes(source.read())[0]) == 1 and source.way == "squeue"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "rest"))
        listening.listen()

        def serve(requests: int) -> None:
            for _ in range(requests):
                connection, _ = listening.accept()
                with connection:
                    path = connection.recv(4096).split()[1].decode()
                    paths.append(path)
                    body = text(row("23.02"), row("23.02", 18)) if "v0.0.39" in path else "no"
                    status = "200 OK" if "v0.0.39" in path else "404 Not Found"
                    connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

        serving = threading.Thread(target=serve, args=(4,))
        serving.start()
        assert len(jobs_on_nodes(source.read())[0]) == len(jobs_on_nodes(source.read())[0]) == 2
        serving.join()
    assert source.way == "slurmrestd v0.0.39"
    assert [path.split("/")[2] for path in paths] == ["v0.0.41", "v0.0.40", "v0.0.39", "v0.0.39"]
    assert len(jobs_on_nodes(source.read())[0]) == 1, "slurmrestd has ended: its socket is left"
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n")
    with pytest.raises(ClusterError, match="squeue failed: slurm_load_jobs error: Unable to contact"):
        source.read()
    with pytest.raises(ClusterError, match="cannot run it"):
        QueueSource(tmp_path / "none", str(tmp_path / "none")).read()


class _Rest(BaseHTTPRequestHandler):
    """A stand-in for slurmrestd 22.05 with rest_auth/jwt, by its documentation; none with that plug-in runs here."""

    def do_GET(self) -> None:
        is_known = self.headers["X-SLURM-USER-TOKEN"] == "secret" and self.headers["X-SLURM-USER-NAME"]
        body = text(row("22.05")).encode() if is_known and "v0.0.38" in self.path else b"no"
        self.send_response(401 if not is_known else 200 if "v0.0.38" in self.path else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_slurmrestd_at_an_address_gets_a_token_which_is_read_again_when_it_has_been_renewed(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("SLURM_JWT=old\n")
    with HTTPServer(("127.0.0.1", 0), _Rest) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            address = f"127.0.0.1:{server.server_port}"
            source = QueueSource(f"http://{address}", "/bin/false", token)
            with pytest.raises(ClusterError, match=f"slurmrestd at {address}: it does not take the token: has it exp"):
                source.read()
            token.write_text("SLURM_JWT=secret\n")
            assert len(jobs_on_nodes(source.read())[0]) == 1 and source.way == "slurmrestd v0.0.38"
            token.write_bytes(b"\xff")
            with pytest.raises(ClusterError, match=f"slurmrestd at {address}: 'ascii' codec"):
                source.read()
            token.unlink()
            with pytest.raises(ClusterError, match=f"slurmrestd at {address}: No such file"):
                source.read()
        finally:
            server.shutdown()
    token.write_text("secret")
    with pytest.raises(ClusterError, match=f"slurmrestd at {address}: Connection refused"):
        source.read()


LOG = """
[T1] _slurm_rpc_submit_batch_job: JobId=7 InitPrio=1 usec=2
[T2] slurmctld version 22.05.8 started on cluster emulated
[T3] Recovered JobId=6 Assoc=0
[T4] Recovered information about 1 jobs
[T5] _slurm_rpc_submit_batch_job: JobId=7 InitPrio=1 usec=2
[T6] slurmctld version 22.05.8 started on cluster emulated
[T7] Recovered JobId=7 Assoc=0
[T8] Recovered information about 2 jobs
[T8] _job_complete: JobId=7 done
[T9] _slurm_rpc_submit_batch_job: JobId=8 InitPrio=1 usec=2
[T10] _job_complete: JobId=8 done
[T11] slurmctld version 22.05.8 started on cluster emulated
[T12] Recovered information about 0 jobs
""".splitlines()


def test_a_lost_job_is_slurms_loss_if_a_start_of_slurmctld_did_not_recover_it() -> None:
    first = slurms_loss(LOG, "7", 0)
    assert [line.split()[0] for line in first.splitlines()] == ["[T1]", "[T2]", "[T4]"]
    assert slurms_loss(LOG, "7", 1) == "", "the second of this number was recovered"
    assert slurms_loss(LOG, "8", 0) == "", "it had ended"
    assert slurms_loss(LOG, "7", 2) == slurms_loss(LOG, "9", 0) == "", "no such submission"
