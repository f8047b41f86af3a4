"""nodectl-hook against a real cluster agent: caps in force before it returns, roles, slow heads, hostile names."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cluster_agent.budget.sharers.view import Tag
from cluster_agent.hook.build_hook import build
from tests.fabric.cluster import Cluster

NODES = ("n01", "n02")
FAST_S, SLOW_S = 20.0, 1.0
"""How long a hook may wait: where an answer is expected, and where none comes."""


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with the sanitizers of the compiler."""
    flags = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    return build(tmp_path_factory.mktemp("hook") / "nodectl-hook", *flags)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes under a sharer that gives idle ones their MOP of 150 W, and jobs up to 500 W."""
    with Cluster(tmp_path_factory.mktemp("head"), 1000.0, sharer="aapc") as made:
        made.process = made.serve()  # type: ignore[attr-defined]
        for name in NODES:
            made.node(name)
        made.run("keys", "new", "slurm", "--role", "notifier", "--dir", str(made.keys))
        made.until(lambda: [row["state"] for row in made.ask("nodes") or []] == ["capped"] * 2)
        yield made


def run(hook: Path, place: str, *words: str, wait_s: float = FAST_S, **environment: str) -> tuple[int, str]:
    """Exit status and line of a hook in Slurm's environment: job 17 of alice on n01, unless told otherwise."""
    job = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n01", "SLURM_CLUSTER_NAME": "hpc", "SLURM_JOB_USER": "alice"}
    done = subprocess.run(
        [hook, *words, "--socket", place, "--wait", str(wait_s)],
        env={"PATH": os.environ["PATH"], **job, **environment}, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr.decode()


def jobs(cluster: Cluster) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(cluster.ctl("notify", "list", "--json").stdout)
    return found


def test_a_start_is_answered_when_the_caps_of_its_nodes_are_in_force(cluster: Cluster, hook: Path) -> None:
    cluster.until(lambda: cluster.cap_w("n01") == 150.0)  # idle: its MOP
    status, line = run(hook, str(cluster.socket), "start", SLURM_JOB_COMMENT='nodectl=compute "quoted"')
    at_its_return_w = cluster.cap_w("n01")
    assert (status, at_its_return_w > 150.0) == (0, True), line
    assert "job 17: caps are in force after" in line
    (job,) = jobs(cluster)
    assert [job[key] for key in ("job", "cluster", "user", "tag", "nodes")] == [
        "17",
        "hpc",
        "alice",
        "compute",
        ["n01"],
    ]
    assert run(hook, str(cluster.socket), "end")[0] == 0
    assert jobs(cluster) == []


def test_a_notice_names_the_partition_and_the_row_says_what_reports_cover(cluster: Cluster, hook: Path) -> None:
    run(hook, str(cluster.socket), "start", SLURM_JOB_ID="70", SLURM_JOB_PARTITION="bätch")
    time.sleep(3.0)  # so that its node reports
    run(hook, str(cluster.socket), "end", SLURM_JOB_ID="70")
    (row,) = [one for one in json.loads(cluster.ctl("energy", "--json").stdout) if one["job"] == "70"]
    assert row["partition"] == "bätch"
    assert 0 < row["heard_s"] <= row["ended_s"] - row["began_s"] + 1.0


def test_a_start_is_answered_no_earlier_than_the_slowest_node_allows(cluster: Cluster, hook: Path) -> None:
    cluster.until(lambda: cluster.cap_w("n01") == cluster.cap_w("n02") == 150.0)
    slow = cluster.started["n02"]
    environment = {"SLURM_JOB_ID": "18", "SLURM_JOB_NODELIST": "n[01-02]", "SLURM_JOB_COMMENT": "nodectl=compute"}
    words = [hook, "start", "--socket", str(cluster.socket), "--wait", str(FAST_S)]
    slow.send_signal(signal.SIGSTOP)  # shorter than its lease: it is not silent, its cap is only late
    try:
        with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as waiting:
            cluster.until(lambda: cluster.cap_w("n01") > 150.0)
            assert waiting.poll() is None, "n02 may not draw its watts yet"
            slow.send_signal(signal.SIGCONT)
            _, line = waiting.communicate(timeout=60)
    finally:
        slow.send_signal(signal.SIGCONT)
    assert (waiting.returncode, cluster.cap_w("n02") > 150.0) == (0, True) and "caps are in force" in line, line
    cluster.ctl("notify", "end", "18")


def test_nodes_of_others_are_left_out_and_a_job_without_ours_starts_at_once(cluster: Cluster, hook: Path) -> None:
    status, line = run(hook, str(cluster.socket), "start", SLURM_JOB_NODELIST="gpu[1-300],n02")
    assert (status, jobs(cluster)[0]["nodes"]) == (0, ["n02"]), line
    status, line = run(hook, str(cluster.socket), "start", "--if-late", "requeue", SLURM_JOB_NODELIST="gpu[1-300]")
    assert status == 0 and "no node of this cluster agent" in line
    assert jobs(cluster) == [], "it runs elsewhere now"


def test_the_end_of_an_earlier_run_does_not_end_the_present_one(cluster: Cluster, hook: Path) -> None:
    run(hook, str(cluster.socket), "start", SLURM_JOB_RESTART_COUNT="1")
    run(hook, str(cluster.socket), "end", SLURM_JOB_RESTART_COUNT="0")  # a late epilog of the run before
    assert [job["restarts"] for job in jobs(cluster)] == [1]
    run(hook, str(cluster.socket), "end", SLURM_JOB_RESTART_COUNT="1")
    assert jobs(cluster) == []


@pytest.mark.parametrize("choice", ["start", "requeue"])
def test_a_stopped_head_holds_a_job_no_longer_than_was_said(cluster: Cluster, hook: Path, choice: str) -> None:
    os.kill(cluster.process.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
    try:
        began_s = time.monotonic()
        status, line = run(hook, str(cluster.socket), "start", "--if-late", choice, wait_s=SLOW_S)
        took_s = time.monotonic() - began_s
    finally:
        os.kill(cluster.process.pid, signal.SIGCONT)  # type: ignore[attr-defined]
    assert status == (choice == "requeue") and "no answer in time" in line
    assert SLOW_S <= took_s < SLOW_S + 3  # of it up to 0.25 s by design, the rest the machine's
    cluster.until(lambda: cluster.ctl("notify", "end", "17", "--cluster", "hpc").returncode == 0)


def test_no_head_and_one_that_talks_nonsense_start_the_job(tmp_path: Path, hook: Path) -> None:
    status, line = run(hook, str(tmp_path / "none"), "start", wait_s=SLOW_S)
    assert status == 0 and "No such file" in line
    assert run(hook, str(tmp_path / "none"), "start", "--if-late", "requeue", wait_s=SLOW_S)[0] == 1
    assert run(hook, str(tmp_path / "none"), "end", "--if-late", "requeue", wait_s=SLOW_S)[0] == 0
    answers = [
        b"",
        b"\x00",
        b"\xff" * 8,
        b"\x00\x00\x00\x01\xc0",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x05\x94\x01\xdb\xff\xff",
    ]
    answers += [len(body).to_bytes(4, "big") + body for body in map(msgspec.msgpack.encode, (
        [1, "", 0, {"state": "in force?", "words": []}], [2, "", 0, None], [1, "", 0, {"words": [[1], {}]}],
        [1, "x" * 5000, 1, None], [1, "", 0, [["a"] * 400] * 3],
    ))]  # fmt: skip
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def answer_all() -> None:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

        answering = threading.Thread(target=answer_all)
        answering.start()
        for answer in answers:
            status, line = run(hook, path, "start")
            assert status == 0 and line.count("\n") == 1 and "Sanitizer" not in line, (answer, line)
        answering.join()


@pytest.mark.parametrize(
    "name",
    [
        "a \"quoted\" 'name' $(id) `id`",
        "größer 計算 🚀",
        "x" * 10_000,
        "計" * 10_000,
        "a\nb\tc\x1b[2J\x7f",
        "\udcff\udc80 caf\udce9",
    ],
)
def test_hostile_names_and_comments_do_no_harm(cluster: Cluster, hook: Path, name: str) -> None:
    comment = f"{name} nodectl=memory {name}"
    status, line = run(hook, str(cluster.socket), "start", SLURM_JOB_NAME=name, SLURM_JOB_COMMENT=comment)
    assert status == 0 and "caps are in force" in line, line
    (job,) = jobs(cluster)
    title = str(job["title"])
    assert job["tag"] == "memory" and len(title) == min(len(os.fsencode(name).decode(errors="replace")), 256)
    assert all(char.isprintable() for char in title)
    run(hook, str(cluster.socket), "end")


@pytest.mark.parametrize(
    ("comment", "tag"),
    [(f"nodectl={tag.name.lower()}", tag.name.lower()) for tag in Tag]
    + [
        ("project=7,nodectl=MEMORY", "memory"),
        ("nodectl=memoryx", ""),
        ("xnodectl=memory", ""),
        ("nodectl=", ""),
        ("", ""),
    ],
)
def test_the_tag_of_a_comment(cluster: Cluster, hook: Path, comment: str, tag: str) -> None:
    run(hook, str(cluster.socket), "start", SLURM_JOB_COMMENT=comment)
    assert jobs(cluster)[0]["tag"] == tag
    run(hook, str(cluster.socket), "end")


def test_below_slurm_a_wrong_option_starts_the_job_and_says_so(hook: Path) -> None:
    assert run(hook, "/nowhere", "begin")[0] == 2
    status, line = run(hook, "/nowhere", "begin", "--if-late", "requeue", SLURM_SCRIPT_CONTEXT="prolog_slurmctld")
    assert status == 0 and line.startswith("nodectl-hook start|end")
