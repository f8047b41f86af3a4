"""Jobs without a head, by real processes: node managers, task managers, links, keys, and the node's own job steps."""

from __future__ import annotations

import os
import pwd
import re
import signal
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import zmq

from cluster_agent.cli import main
from cluster_agent.dispatch import messages as m
from cluster_agent.dispatch.fitting_index import Booked, Need, Window, packed
from cluster_agent.dispatch.live.administration import Administration
from cluster_agent.dispatch.live.dispatch_frames import frame_of, read_frame
from cluster_agent.dispatch.live.dispatched_jobs import DispatchedJobs
from cluster_agent.dispatch.live.manager_links import dealer
from cluster_agent.dispatch.live.node_journal import Entry, NodeJournal
from cluster_agent.dispatch.live.partition_file import read_nodes
from cluster_agent.dispatch.live.submission import cancelled, submitted
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.jobs.foreign_jobs import ForeignJob, ForeignJobs
from foundation.wire.keys import read_pair
from foundation.wire.power_messages import WireError
from nodectl.member.job_exchange import JobExchange
from tests.fabric.dispatching import SAFE_MW, Dispatching, program
from tests.fabric.links import report
from tests.fabric.relay import Relay
from tests.waiting import PATIENCE_S, within

SHIFTED = (
    "import sys, time; from cluster_agent.dispatch.live import node_service as s; "
    "s.wall_us = lambda: time.time_ns() // 1000 + 180_000_000; sys.exit(s.main())"
)


WAITS = ("/bin/sh", "-c", "echo began >> ran; while ! [ -e go ]; do sleep .1; done")


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_job_runs_once_on_each_of_its_nodes_by_their_job_steps_and_leaves_nothing(tmp_path: Path) -> None:
    with Dispatching(tmp_path, 3) as nodes:
        assert nodes.submit("echo $NODECTL_NODE $NODECTL_NODE_RANK of $NODECTL_NODES >> ran", units=2) == 0
        ran = sorted(lines_of(tmp_path / "ran"), key=lambda line: line.split()[1])
        names = ran[0].split()[-1]
        assert ran == [f"{name} {rank} of {names}" for rank, name in enumerate(names.split(","))] and len(ran) == 2
        assert nodes.submit("exit 3") == 1
        assert nodes.said[-1].endswith(": exit status 3") and "failed: n" in nodes.said[-1]
        assert within(PATIENCE_S, lambda: not any(map(nodes.journal, nodes.names)))
        parts = [part for jobs in nodes.jobs.values() for part in jobs.news().parts]
        assert within(PATIENCE_S, lambda: not [p for jobs in nodes.jobs.values() for p in jobs.news().parts]), parts
    assert list(nodes.files.iterdir()) == []


def test_a_unit_that_fails_ends_the_others_and_a_job_that_no_node_can_feed_ends_in_one_line(tmp_path: Path) -> None:
    with Dispatching(tmp_path, 2) as nodes:
        assert nodes.submit('[ "$NODECTL_NODE_RANK" = 1 ] && exit 4; exec sleep 600', units=2) == 1
        assert nodes.said[-1].endswith("exit status 4")
        assert nodes.submit("true", watts=501.0) == 1
        assert "can never run: 1 nodes with 1 cores and 501 W each are needed, and 0 have them" in nodes.said[-1]
        with pytest.raises(WrongUseError, match="2 nodes dispatch here"):
            nodes.submit("true", units=3)


def test_node_managers_that_are_killed_while_a_job_runs_find_it_again_and_it_runs_once(tmp_path: Path) -> None:
    with Dispatching(tmp_path, 2) as nodes:
        task = nodes.command(
            "--nodes", "2", "--", "/bin/sh", "-c", "echo began >> ran; while ! [ -e go ]; do sleep .1; done"
        )
        assert within(PATIENCE_S, lambda: len(lines_of(tmp_path / "ran")) == 2)
        for name in nodes.names:
            process = nodes.threads[name]._process
            assert process is not None
            os.kill(process.pid, signal.SIGKILL)
        assert within(PATIENCE_S, lambda: len([line for line in nodes.log if "is started again" in line]) == 2)
        nodes.end("n1")  # and an agent, whose jobs go on
        nodes.begin("n1")
        (tmp_path / "go").touch()
        said = task.communicate(timeout=PATIENCE_S)[0].splitlines()
        assert (task.returncode, said[-1].split(": ")[1]) == (0, "done")
        assert lines_of(tmp_path / "ran") == ["began", "began"]


def test_a_task_manager_that_is_killed_loses_no_job_and_another_one_hears_of_its_end(tmp_path: Path) -> None:
    with Dispatching(tmp_path, 2) as nodes:
        task = nodes.command("--", *WAITS)
        assert task.stdout is not None
        job = task.stdout.readline().split()[1]
        assert within(PATIENCE_S, lambda: bool(lines_of(tmp_path / "ran")))
        busy = nodes.command("--resume", job)
        assert "its task manager lives" in busy.communicate(timeout=PATIENCE_S)[0] and busy.returncode == 2
        task.kill()
        task.communicate()
        (tmp_path / "go").touch()
        again = nodes.command("--resume", job)
        assert again.communicate(timeout=PATIENCE_S)[0].splitlines()[-1] == f"job {job}: done"
        assert again.returncode == 0 and lines_of(tmp_path / "ran") == ["began"]
        gone = nodes.command("--resume", job)
        assert "it is over, or another's" in gone.communicate(timeout=PATIENCE_S)[0] and gone.returncode == 2
        left = nodes.command("--", "/bin/sh", "-c", "echo left >> ran")
        assert left.stdout is not None
        job = left.stdout.readline().split()[1]
        assert within(
            PATIENCE_S, lambda: any('"phase":"st' in text for text in map(str, map(nodes.journal, nodes.names)))
        )
        left.terminate()
        assert f"`--resume {job}` waits for its end" in left.communicate(timeout=PATIENCE_S)[0]
        assert within(PATIENCE_S, lambda: lines_of(tmp_path / "ran")[-1] == "left")


def test_a_cancelled_job_ends_on_its_nodes_with_its_task_manager_without_it_and_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "files"))
    with Dispatching(tmp_path, 2, reply_s=0.2) as nodes:
        files, said = nodes.files / "clusterctl" / "dispatch", list[str]()
        task = nodes.command("--nodes", "2", "--", *WAITS)
        assert task.stdout is not None
        job = int(task.stdout.readline().split()[1])
        assert within(PATIENCE_S, lambda: len(lines_of(tmp_path / "ran")) == 2)
        assert main(["cancel", str(job)]) == 0 and capsys.readouterr().out.endswith(f"job {job}: it is over\n")
        assert task.communicate(timeout=PATIENCE_S)[0].splitlines()[-1] == f"job {job}: cancelled"
        assert task.returncode == 1
        assert within(PATIENCE_S, lambda: not any(map(nodes.journal, nodes.names)))

        nodes.end("n1")
        nodes.grant("n0", SAFE_MW)
        hungry, alone = nodes.command("--watts", "400", "--", "true"), nodes.command("--", *WAITS)
        assert hungry.stdout is not None and alone.stdout is not None
        never, alive = (int(one.stdout.readline().split()[1]) for one in (hungry, alone))  # type: ignore[union-attr]
        assert cancelled([never], files, said.append) == 0
        assert hungry.communicate(timeout=PATIENCE_S)[0].splitlines()[-1] == f"job {never}: cancelled before it began"
        assert within(PATIENCE_S, lambda: len(lines_of(tmp_path / "ran")) == 3)
        alone.kill()
        alone.communicate()
        nodes.end("n0")  # the agent and its node manager; the job goes on
        silent = f"job {alive}: node 0 does not answer: the job ends there as soon as it does"

        def say(line: str) -> None:
            said.append(line)
            if line == silent:
                nodes.begin("n0")

        assert cancelled([alive], files, say) == 0 and said[-2:] == [silent, f"job {alive}: cancelled"]
        assert within(PATIENCE_S, lambda: not any(map(nodes.journal, nodes.names)))
        assert list(files.iterdir()) == []
        assert main(["cancel", str(alive)]) == 2 and "it is over, or another's" in capsys.readouterr().err
    assert lines_of(tmp_path / "ran") == ["began"] * 3


def test_an_administrator_ends_the_job_of_any_user_at_its_node_and_the_user_reads_who_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Dispatching(tmp_path, 2, reply_s=0.2) as nodes:
        main(["keys", "new", "carol", "--role", "admin", "--dir", str(nodes.keys)])

        def cancel(job: str, key: str = "carol") -> tuple[int, str]:
            status = main(["cancel", "--keys", str(nodes.keys), "--key", str(nodes.keys / f"{key}.key"), job])
            said = capsys.readouterr()
            return status, said.out + said.err

        runs = nodes.command("--nodes", "2", "--", *WAITS)
        assert runs.stdout is not None
        job = runs.stdout.readline().split()[1]
        assert within(PATIENCE_S, lambda: len(lines_of(tmp_path / "ran")) == 2)
        waits = nodes.command("--", "/bin/sh", "-c", "echo no >> ran")
        assert waits.stdout is not None
        waiting = waits.stdout.readline().split()[1]
        assert within(PATIENCE_S, lambda: any('"phase":"started"' in str(nodes.journal(name)) for name in nodes.names))
        assert cancel(job, "bob")[0] == 2 and cancel(job, "n0")[0] == 2
        status, said = cancel(waiting)
        assert (status, said) == (0, f"job {waiting}: it is over\n")
        assert waits.communicate(timeout=PATIENCE_S)[0].splitlines()[-1].endswith(": cancelled by administrator carol")
        status, said = cancel(job)
        assert status == 0 and said.endswith(f"ends it\njob {job}: it is over\n")
        assert (
            runs.communicate(timeout=PATIENCE_S)[0].splitlines()[-1] == f"job {job}: cancelled by administrator carol"
        )
        assert (runs.returncode, waits.returncode) == (1, 1)
        assert within(PATIENCE_S, lambda: not any(map(nodes.journal, nodes.names)))
        assert cancel(job)[0] == 1
        assert main(["cancel", "--key", str(nodes.keys / "carol.key"), "7"]) == 2
    assert lines_of(tmp_path / "ran") == ["began"] * 2


def test_nodes_that_do_not_answer_an_administrator_are_named_and_end_the_job_when_they_are_back(
    tmp_path: Path,
) -> None:
    said = list[str]()
    with Dispatching(tmp_path, 2) as nodes:
        main(["keys", "new", "carol", "--role", "admin", "--dir", str(nodes.keys)])
        nodes.grant("n1", 0)
        task = nodes.command("--watts", "1", "--", *WAITS)  # which n0 alone feeds
        assert task.stdout is not None
        job = task.stdout.readline().split()[1]
        assert within(PATIENCE_S, lambda: bool(lines_of(tmp_path / "ran")))
        task.kill()
        task.communicate()
        nodes.end("n0")

        def say(line: str) -> None:
            said.append(line)
            if "no answer" in line:
                nodes.begin("n0")

        assert Administration(nodes.keys, nodes.keys / "carol.key", say).end(int(job)) == 0
        assert said[0] == f"job {job}: no answer of n0, which may have it; the others do not"
        assert said[-1] == f"job {job}: it is over" and not nodes.running("n0")


def test_a_job_can_be_cancelled_as_soon_as_its_number_is_known(tmp_path: Path) -> None:
    with Dispatching(tmp_path, 1) as nodes, ThreadPoolExecutor(1) as pool:
        ends, said = list[Future[int]](), list[str]()

        def say(line: str) -> None:
            said.append(line)
            if not ends:
                cancel = nodes.files / f"{line.split()[1]}.cancel"
                ends.append(pool.submit(cancelled, [int(cancel.stem)], nodes.files, said.append))
                assert within(PATIENCE_S, lambda: cancel.exists() or ends[0].done())

        key = nodes.keys / "alice.key"
        assert submitted(program("echo >> ran", tmp_path), 1, 0.0, nodes.keys, key, nodes.files, say) == 1
        assert ends[0].result() == 0 and said[0] + ": cancelled before it began" in said
    assert not (tmp_path / "ran").exists() and list(nodes.files.iterdir()) == []


def test_a_node_manager_that_restarts_does_not_start_a_unit_that_was_cancelled_in_between(tmp_path: Path) -> None:
    nodes = Dispatching(tmp_path, 1)
    first = time.time_ns() // 200_000_000
    row = m.Reservation(
        1 << 33, 1, first, first + 300, Need(1, 0), packed(Booked(first, first + 300, Need(1, 0))), "running", 0, (0,),
        m.CANCELLED,
    )  # fmt: skip
    NodeJournal(tmp_path / "n0" / "journal").write(Entry(row, program("echo >> ran", tmp_path), "", "boot"))
    with nodes:
        assert within(PATIENCE_S, lambda: '"phase":"done"' in str(nodes.journal("n0")))
        assert nodes.jobs["n0"].news().parts == []
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_node_manager_becomes_a_user_of_its_own_that_writes_its_journal_and_does_all_its_work(
    capfd: pytest.CaptureFixture[str],
) -> None:
    uid = pwd.getpwnam("nobody").pw_uid
    with tempfile.TemporaryDirectory() as name:
        at, said = Path(name), ""
        at.chmod(0o755)
        (at / "n0").mkdir(mode=0o755)
        (secret := at / "secret").write_text("root's")
        nodes, journal = Dispatching(at, 1, user="nobody"), at / "n0" / "journal"
        nodes.keys.chmod(0o755)
        (nodes.keys / "allowed").chmod(0o644)
        with nodes:
            assert nodes.submit("echo 1 >> ran") == 0
            [status] = [Path(f"/proc/{one.pid}/status").read_text() for one in psutil.Process().children()
                        if "cluster_agent.dispatch.live.node_service" in one.cmdline()]  # fmt: skip
            assert f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}" in status and "NoNewPrivs:\t1" in status
            assert re.search(r"CapEff:\t0+\n", status) and re.search(r"Groups:\s*\n[^ ]", status)
            assert journal.stat().st_uid == uid
            nodes.end("n0")
            os.chown(journal, 0, 0)  # as an agent without this setting left it
            (journal / "7.1.json").write_text("{}")
            (journal / "link").symlink_to(secret)
            os.link(secret, journal / "hard")
            nodes.keys.chmod(0o700)
            nodes.begin("n0")

            def refused() -> bool:
                nonlocal said
                said += capfd.readouterr().err
                return "allowed: nobody ([dispatch] user) may not read it: `chmod a+rX` it and its folder" in said

            assert within(PATIENCE_S, refused), said
            nodes.keys.chmod(0o755)
            assert within(PATIENCE_S, lambda: (journal / "7.1.damaged").exists())
            assert (journal / "7.1.damaged").stat().st_uid == uid and secret.stat().st_uid == 0
            assert nodes.submit("echo 2 >> ran") == 0
        assert lines_of(at / "ran") == ["1", "2"]


def test_a_network_that_is_cut_loses_no_job(tmp_path: Path) -> None:
    relays: list[Relay] = []

    def through(port: int) -> str:
        relays.append(Relay(port))
        return f"tcp://127.0.0.1:{relays[-1].port}"

    with Dispatching(tmp_path, 1, urls={"n0": through}) as nodes, relays[0] as relay:
        task = nodes.command("--", *WAITS)
        assert within(PATIENCE_S, lambda: bool(lines_of(tmp_path / "ran")))
        relay.cut()
        (tmp_path / "go").touch()
        assert within(PATIENCE_S, lambda: '"phase":"done"' in str(nodes.journal("n0")))
        late = nodes.command("--", "/bin/sh", "-c", "echo late >> ran")
        assert late.stdout is not None
        assert within(
            PATIENCE_S, lambda: "only 0 of 1 nodes answer: it is tried again in 1 s" in late.stdout.readline()
        )
        relay.mend()
        for one in (task, late):
            assert one.communicate(timeout=PATIENCE_S)[0].splitlines()[-1].endswith(": done")
        assert lines_of(tmp_path / "ran") == ["began", "late"]


def test_without_a_lease_jobs_run_under_the_safe_cap_and_one_that_needs_more_waits_for_it(tmp_path: Path) -> None:
    with Dispatching(tmp_path, 1) as nodes:
        nodes.grant("n0", seconds=0)
        hungry = nodes.command("--watts", "300", "--", "/bin/sh", "-c", "echo hungry >> ran")
        assert hungry.stdout is not None
        assert hungry.stdout.readline() and "no start that enough nodes offer" in hungry.stdout.readline()
        assert nodes.submit("echo modest >> ran", watts=200.0) == 0
        nodes.grant("n0", 400_000)
        assert hungry.communicate(timeout=PATIENCE_S)[0].splitlines()[-1].endswith(": done")
        assert lines_of(tmp_path / "ran") == ["modest", "hungry"]


def test_a_node_whose_clock_is_minutes_apart_gets_no_job_and_is_named_in_one_line(tmp_path: Path) -> None:
    with Dispatching(tmp_path, 2, {"n1": (sys.executable, "-c", SHIFTED)}) as nodes:
        said = "node 1: its clock is +180 s from here: set it; it is left out"

        def is_named() -> bool:  # its answer may come late, and then is not looked at
            assert nodes.submit("echo $NODECTL_NODE >> ran") == 0
            return said in nodes.said

        assert within(PATIENCE_S, is_named), nodes.said
        assert set(lines_of(tmp_path / "ran")) == {"n0"}


def test_keys_say_who_may_send_a_job_and_whose_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Dispatching(tmp_path, 1) as nodes:
        main(["keys", "new", "eve", "--role", "admin", "--dir", str(nodes.keys)])
        main(["keys", "new", "mallory", "--dir", str(nodes.keys)])
        context = zmq.Context()
        url, server = read_nodes(nodes.keys).nodes[0].url, read_pair(nodes.keys / "n0.key").public
        need, window = Need(1, 0), Window(10, 1 << 34, (1 << 34) + 30)
        request = m.Submit(1 << 33, 1, need, window, 5, "first", False, 1)

        def sender(name: str) -> zmq.Socket[bytes]:
            return dealer(context, url, read_pair(nodes.keys / f"{name}.key"), server)

        sockets = {name: sender(name) for name in ("alice", "bob", "eve", "mallory")}
        try:
            for name in ("eve", "mallory"):
                sockets[name].send(frame_of(request))
            sockets["eve"].send(frame_of(m.Confirm(1 << 33, 1, 1)))
            sockets["alice"].send(frame_of(request))
            assert sockets["alice"].poll(1000 * PATIENCE_S)
            message, _ = read_frame(sockets["alice"].recv())
            assert isinstance(message, m.Candidates) and message.spans
            sockets["bob"].send(frame_of(m.Release(1 << 33, 1)))
            sockets["bob"].send(frame_of(m.Cancel(1 << 33, 1, "eve")))
            sockets["bob"].send(frame_of(m.Join(1 << 33, 1, 0)))
            sockets["bob"].send(b"garbage")
            said = ""

            def has_said() -> bool:
                nonlocal said
                said += capfd.readouterr().err
                return "bob: dropped: not a message" in said and said.count("a key that may not come here") == 1

            assert within(PATIENCE_S, has_said), said
            assert all(f"bob: dropped: {what}: job {1 << 33} is another's" in said for what in ("Release", "Cancel"))
            only = "an administrator's key may cancel jobs, and nothing else"
            assert all(f"eve: dropped: {what}: {only}" in said for what in ("Submit", "Confirm"))
            assert "bob: dropped: Join: it is none of a task manager's" in said
            assert not any(sockets[name].poll(0) for name in ("bob", "eve", "mallory"))
        finally:
            for one in sockets.values():
                one.close(0)
            context.term()


@pytest.mark.parametrize(
    "body",
    [
        m.Submit(5, 1, Need(1, 0), Window(0, 1, 2), 5, "first", False, 1),
        m.Submit(5, 1, Need(1, 0), Window(1, 1, 1 << 41), 5, "first", False, 1),
        m.Submit(5, 1, Need(1, 1 << 60), Window(1, 1, 9), 5, "first", False, 1),
        m.Submit(5, 1, Need(1, 0), Window(1, 1, 9), 1 << 20, "first", False, 1),
        m.Confirm(5, 0, 1),
        m.Confirm(1 << 53, 1, 1),
        m.Start(5, 1, tuple(range(5000))),
        m.Candidates(5, 1, 0, ((1, 2, float("inf")),), 0, 0),
    ],
)
def test_messages_with_numbers_that_cannot_be_are_none(body: m.Message) -> None:
    with pytest.raises(WireError, match="with numbers that cannot be"):
        read_frame(frame_of(body))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nodes = []\n", "length"),
        ('[[nodes]]\nname = "a"\nurl = "head:1"\n', "is no URL"),
        ('[[nodes]]\nname = "a"\nurl = "tcp://h:1"\n[[nodes]]\nname = "a"\nurl = "tcp://h:2"\n', "a stands twice"),
        ('slot_s = 0.0\n[[nodes]]\nname = "a"\nurl = "tcp://h:1"\n', "slot_s"),
        ('slots = 60\n[[nodes]]\nname = "a"\nurl = "tcp://h:1"\n', "slots"),
    ],
)
def test_a_wrong_list_of_nodes_is_refused_in_one_line(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "nodes.toml").write_text(text)
    with pytest.raises(ClusterError, match=why) as refused:
        read_nodes(tmp_path)
    assert "\n" not in str(refused.value)


# --- the head


def test_the_head_counts_a_job_as_long_as_a_node_that_had_it_may_run_it(tmp_path: Path) -> None:
    jobs, happened, is_full = ForeignJobs(tmp_path / "notices"), list[str](), False

    def start(job: str, nodes: list[str]) -> None:
        if is_full:
            raise ClusterError("the disk is full")
        jobs.start(ForeignJob(job, nodes, cluster="dardis"), nodes)
        happened.append(f"{job} on {' '.join(nodes)}")

    def end(job: str) -> None:
        jobs.end(job, "dardis")
        happened.append(f"{job} over")

    head = DispatchedJobs(jobs, start, end)
    head.hear([report("n0", dispatched=[7]), report("n1", dispatched=[7]), report("n2")])
    head.hear([report("n0", dispatched=[7])])
    assert happened == ["7 on n0 n1"]
    head = DispatchedJobs(ForeignJobs(tmp_path / "notices"), start, end)  # it was killed, and begins again
    head.hear([report("n1"), report("n2", dispatched=[8])])
    is_full = True
    head.hear([report("n0"), report("n1", dispatched=[9])])
    assert head.trouble == "the disk is full" and happened[1:] == ["7 on n0", "8 on n2", "7 over"]
    is_full = False
    head.hear([])
    assert head.trouble == "" and happened[-1] == "9 on n1"


def test_a_head_neither_starts_nor_ends_jobs_of_a_node_that_dispatches(tmp_path: Path) -> None:
    class Link:
        wants_jobs, job_queries = True, 0
        sent: list[object] = []  # noqa: RUF012

        def job_messages(self) -> list[str]:
            return ["a signal"]

        def send_jobs(self, news: object) -> None:
            self.sent.append(news)

    with Dispatching(tmp_path, 1) as nodes:
        thread, link = nodes.jobs["n0"], Link()
        thread.post = lambda message: pytest.fail("the head's message was taken")  # type: ignore[method-assign]
        JobExchange(link, thread, None, dispatches=True).exchange(0)  # type: ignore[arg-type]
        news = link.sent[0]
        assert (news.parts, news.refuses) == ([], "its jobs are dispatched without the cluster agent ([dispatch])")  # type: ignore[attr-defined]
