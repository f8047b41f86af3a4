"""Agent and writer as two processes with real files, signals and clocks: who puts what back, and when."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodectl.write.lock import LockError, is_locked
from nodectl.writer_process.remote_writer import RemoteWriter
from nodectl.writer_process.writer_link import Link, WriterLostError, start_writer
from tests.waiting import PATIENCE_S, within
from tests.writer_process.tree_writer import (
    CPU,
    MAX_KHZ,
    POWERCAP,
    ROOT,
    clock_path,
    limit_path,
    limits,
    make_tree,
    writer_on,
)

CLOCKS = [f"cpu/policy{policy}/max_khz" for policy in range(4)]
LIMIT = "rapl/package-0/long_term_uw"
MOVED = {**dict.fromkeys(CLOCKS, 1_500_000), LIMIT: 90_000_000}

AGENT = """
import sys, time
from pathlib import Path
from tests.writer_process.tree_writer import writer_on
root, state, period_s = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
writer = writer_on(root, state)
writer.start()
print(writer._link.process.pid, flush=True)
while True:
    writer.apply({name: int(value) for name, value in zip(sys.argv[4::2], sys.argv[5::2])})
    time.sleep(period_s)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "node")


@contextlib.contextmanager
def an_agent(tree: Path, state: Path, period_s: float = 0.05) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """An agent with moved knobs, and its writer's process id."""
    words = [word for name, value in MOVED.items() for word in (name, str(value))]
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(tree), str(state), str(period_s), *words],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert agent.stdout
    try:
        writer = int(agent.stdout.readline())
        assert within(PATIENCE_S, lambda: is_moved(tree))
        yield agent, writer
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()


def is_moved(tree: Path) -> bool:
    return [clock_path(tree, policy).read_text().strip() for policy in range(4)] == ["1500000"] * 4


def is_gone(pid: int) -> bool:
    """Ended, and reaped by whoever it was left to."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def started(tree: Path, tmp_path: Path, links: list[Link] | None = None) -> RemoteWriter:
    writer = writer_on(tree, tmp_path / "state", links)
    writer.start()
    return writer


def test_an_orderly_run_leaves_every_knob_as_it_was(tree: Path, tmp_path: Path) -> None:
    found = limits(tree)
    writer = started(tree, tmp_path)
    outcomes = writer.apply(MOVED)
    assert [(outcome.knob, outcome.status, outcome.detail) for outcome in outcomes] == [
        (name, "written", str(value)) for name, value in MOVED.items()
    ]
    assert is_moved(tree) and limit_path(tree).read_text().strip() == "90000000"
    assert {outcome.status for outcome in writer.apply(MOVED)} == {"unchanged"}
    assert [outcome.knob for outcome in writer.restore_all()] == list(MOVED)[::-1]
    assert limits(tree) == found
    writer.close()
    assert not (tmp_path / "state/captured.jsonl").exists()


def test_an_agent_that_is_killed_leaves_every_knob_as_it_was(tree: Path, tmp_path: Path) -> None:
    found = limits(tree)
    with an_agent(tree, tmp_path / "state") as (agent, writer):
        agent.kill()
        assert within(PATIENCE_S, lambda: limits(tree) == found)
        assert within(PATIENCE_S, lambda: is_gone(writer)), "a writer without an agent must end"
    assert not (tmp_path / "state/captured.jsonl").exists()


def test_an_agent_that_is_stopped_loses_its_leases_and_moves_the_knobs_again_when_it_goes_on(
    tree: Path, tmp_path: Path
) -> None:
    found = limits(tree)
    with an_agent(tree, tmp_path / "state") as (agent, writer):
        agent.send_signal(signal.SIGSTOP)
        assert within(PATIENCE_S, lambda: limits(tree) == found)
        time.sleep(0.2)
        assert limits(tree) == found and not is_gone(writer)
        agent.send_signal(signal.SIGCONT)
        assert within(PATIENCE_S, lambda: is_moved(tree))


def test_an_agent_that_renews_nothing_loses_its_leases(tree: Path, tmp_path: Path) -> None:
    found = limits(tree)
    writer = started(tree, tmp_path)
    writer.apply(MOVED)
    assert within(PATIENCE_S, lambda: limits(tree) == found)
    writer.apply({})
    assert writer.expired == len(MOVED)
    assert "silent for longer than the lease of 1 s: 5 knobs were put back" in writer.notices()[0]
    writer.close()


def test_a_knob_that_is_not_named_any_more_is_put_back_when_its_lease_is_over(tree: Path, tmp_path: Path) -> None:
    writer = started(tree, tmp_path)
    writer.apply(MOVED)
    kept = {CLOCKS[0]: 1_500_000}

    def is_only_the_first_moved() -> bool:
        writer.apply(kept)
        return [clock_path(tree, policy).read_text().strip() for policy in range(4)] == ["1500000", *["3200000"] * 3]

    assert within(PATIENCE_S, is_only_the_first_moved)
    assert limit_path(tree).read_text().strip() == "150000000"
    writer.restore_all()
    writer.close()


def test_a_writer_that_is_killed_is_started_again_and_repairs_from_the_save(tree: Path, tmp_path: Path) -> None:
    found, links = limits(tree), []
    writer = started(tree, tmp_path, links)
    writer.apply(MOVED)
    links[0].process.kill()
    assert within(PATIENCE_S, lambda: links[0].process.poll() is not None)
    assert {outcome.status for outcome in writer.apply(MOVED)} == {"written"}, "it was put back before"
    assert len(links) == 2 and is_moved(tree)
    assert "started again, 5 knobs put back from the save" in writer.notices()[0]
    writer.restore_all()
    writer.close()
    assert limits(tree) == found


def test_a_writer_that_is_lost_twice_in_one_request_is_started_a_third_time(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, links = limits(tree), []
    writer = started(tree, tmp_path, links)
    writer.apply(MOVED)
    start_again = writer._start_again

    def lost_again(why: str) -> None:
        start_again(why)
        if len(links) == 2:
            links[1].process.kill()
            assert within(PATIENCE_S, lambda: links[1].process.poll() is not None)

    monkeypatch.setattr(writer, "_start_again", lost_again)
    links[0].process.kill()
    assert within(PATIENCE_S, lambda: links[0].process.poll() is not None)
    assert {outcome.status for outcome in writer.apply(MOVED)} == {"written"}
    assert len(links) == 3 and is_moved(tree)
    writer.restore_all()
    writer.close()
    assert limits(tree) == found


def test_a_writer_that_hangs_is_killed_and_started_again(tree: Path, tmp_path: Path) -> None:
    found, links = limits(tree), []
    writer = started(tree, tmp_path, links)
    writer.apply(MOVED)
    links[0].process.send_signal(signal.SIGSTOP)
    writer.answer_s = 0.3
    writer.lease_s = PATIENCE_S
    with contextlib.suppress(WriterLostError):  # a busy machine may find the second one hung as well
        writer.apply(MOVED)
    assert links[0].process.returncode == -signal.SIGKILL and len(links) > 1
    writer.close()
    assert within(PATIENCE_S, lambda: limits(tree) == found)


def test_a_writer_that_cannot_be_kept_alive_ends_the_run(tree: Path, tmp_path: Path) -> None:
    links: list[Link] = []
    writer = started(tree, tmp_path, links)
    with pytest.raises(WriterLostError, match="lost 3 times within 60 s"):
        for _ in range(5):
            writer.apply(MOVED)
            links[-1].process.kill()
            links[-1].process.wait()
    assert len(links) == 4


def test_a_writer_that_is_stopped_by_a_signal_puts_everything_back_and_ends_the_run(tree: Path, tmp_path: Path) -> None:
    found, links = limits(tree), []
    writer = started(tree, tmp_path, links)
    writer.apply(MOVED)
    links[0].process.terminate()
    links[0].process.wait(PATIENCE_S)
    assert limits(tree) == found
    with pytest.raises(WriterLostError, match="stopped by a signal; every knob is back"):
        writer.apply(MOVED)
    assert writer.restore_all() == [] and len(links) == 1
    writer.close()


def test_a_writer_that_was_stopped_for_longer_than_the_lease_writes_nothing_that_was_waiting_for_it(
    tree: Path, tmp_path: Path
) -> None:
    found, links = limits(tree), []
    writer = started(tree, tmp_path, links)
    writer.apply(MOVED)
    links[0].process.send_signal(signal.SIGSTOP)
    lower = dict.fromkeys(CLOCKS, 1_000_000)
    waking = threading.Timer(1.5, links[0].process.send_signal, (signal.SIGCONT,))
    waking.start()
    outcomes = writer.apply(lower)
    waking.join()
    assert {(outcome.status, outcome.detail) for outcome in outcomes} == {
        ("refused", "requested too long ago; not written")
    }
    assert limits(tree) == found and writer.expired == len(MOVED)
    assert {outcome.status for outcome in writer.apply(lower)} == {"written"}, "a new request is carried out"
    writer.restore_all()
    writer.close()


def test_under_a_grant_knobs_end_at_the_lower_of_where_they_are_and_the_safe_value(tree: Path, tmp_path: Path) -> None:
    writer = started(tree, tmp_path)
    writer.limit_restores({CLOCKS[0]: 1_200_000, CLOCKS[1]: 2_000_000, "caps/node_w": 300})
    writer.apply(MOVED)
    expected = ["1200000", "1500000", "3200000", "3200000"]
    assert within(PATIENCE_S, lambda: [clock_path(tree, policy).read_text().strip() for policy in range(4)] == expected)
    writer.close()
    again = started(tree, tmp_path)
    assert again.restore_limits == {CLOCKS[0]: 1_200_000, CLOCKS[1]: 2_000_000, "caps/node_w": 300}
    again.limit_restores({})
    again.restore_all()
    again.close()
    assert [clock_path(tree, policy).read_text().strip() for policy in range(4)] == ["3200000"] * 4


def test_no_value_outside_a_knobs_range_is_written(tree: Path, tmp_path: Path) -> None:
    writer = started(tree, tmp_path)
    writer.apply({CLOCKS[0]: 1, CLOCKS[1]: -5, LIMIT: 1})
    assert clock_path(tree, 0).read_text().strip() == clock_path(tree, 1).read_text().strip() == "800000"
    assert limit_path(tree).read_text().strip() == "1000000"
    writer.apply({CLOCKS[0]: 2**50})
    assert int(clock_path(tree, 0).read_text()) <= 3_200_000
    writer.restore_all()
    writer.close()


def test_a_second_agent_on_the_state_directory_is_refused_while_the_first_ones_knobs_are_not_back(
    tree: Path, tmp_path: Path
) -> None:
    writer = started(tree, tmp_path)
    second = writer_on(tree, tmp_path / "state")
    with pytest.raises(LockError, match="already runs this node"):
        second.start()
    second.close()
    writer.close()


def test_an_idle_writer_uses_no_processor_time(tree: Path, tmp_path: Path) -> None:
    links: list[Link] = []
    writer = started(tree, tmp_path, links)
    process = Path(f"/proc/{links[0].process.pid}")
    stat = process / "stat"

    def ticks_and_switches() -> tuple[list[str], str]:
        status = (process / "status").read_text()
        return stat.read_text().rpartition(")")[2].split()[11:13], status.split("voluntary_ctxt_switches:")[1].split()[
            0
        ]

    assert within(PATIENCE_S, lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")
    time.sleep(0.2)
    before = ticks_and_switches()
    time.sleep(1.5)
    assert ticks_and_switches() == before, "it must sleep until somebody speaks"
    writer.close()


MANY = 12


def test_many_clocks_are_written_together_and_each_that_is_not_plain_by_itself(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "node", MANY)
    names = [f"cpu/policy{policy}/max_khz" for policy in range(MANY)]
    clock_path(tree, 3).write_text("2000000\n")  # the site's own limit
    found = limits(tree)
    writer = started(tree, tmp_path)
    writer.lease_s = PATIENCE_S
    assert {outcome.status for outcome in writer.apply(dict.fromkeys(names, 1_900_000))} == {"written"}
    clock_path(tree, 5).write_text("1100000\n")  # somebody else
    outcomes = {outcome.knob: outcome.status for outcome in writer.apply(dict.fromkeys(names, 900_000))}
    assert outcomes.pop(names[5]) == "foreign" and set(outcomes.values()) == {"written"}
    texts = [clock_path(tree, policy).read_text().strip() for policy in range(MANY)]
    assert texts == ["900000"] * 5 + ["1100000"] + ["900000"] * 6
    clock_path(tree, 5).write_text("1900000\n")
    writer.restore_all()
    writer.close()
    (path,) = (path for path in found if "policy5/" in path)
    assert limits(tree) == found | {path: "1100000"}, "somebody's stricter limit stays"


def test_many_clocks_are_not_written_by_a_writer_that_was_stopped(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "node", MANY)
    names = [f"cpu/policy{policy}/max_khz" for policy in range(MANY)]
    found = limits(tree)
    links: list[Link] = []
    writer = started(tree, tmp_path, links)
    writer.apply(dict.fromkeys(names, 1_900_000))
    links[0].process.send_signal(signal.SIGSTOP)
    waking = threading.Timer(1.5, links[0].process.send_signal, (signal.SIGCONT,))
    waking.start()
    assert {outcome.status for outcome in writer.apply(dict.fromkeys(names, 1_000_000))} == {"refused"}
    waking.join()
    assert limits(tree) == found
    writer.close()


def test_the_next_agent_waits_until_the_writer_of_a_killed_one_has_put_the_knobs_back(
    tree: Path, tmp_path: Path
) -> None:
    found = limits(tree)
    with an_agent(tree, tmp_path / "state") as (agent, first):
        second = writer_on(tree, tmp_path / "state")
        os.kill(first, signal.SIGSTOP)  # as if the first writer were slow
        agent.kill()
        threading.Timer(0.5, os.kill, (first, signal.SIGCONT)).start()
        with contextlib.suppress(LockError):  # on a busy machine the first one may need longer
            assert second.start().outcomes == [], "nothing was left to restore"
            assert limits(tree) == found
        second.close()
    assert within(PATIENCE_S, lambda: limits(tree) == found)


def test_a_false_nodectl_where_the_run_is_called_is_not_what_runs_as_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    false = tmp_path / "false"
    (false / "nodectl").mkdir(parents=True)
    (false / "nodectl/__init__.py").write_text(f"open({str(tmp_path / 'trap')!r}, 'w')\nraise SystemExit(1)\n")
    monkeypatch.chdir(false)
    RemoteWriter(lambda: start_writer(str(tmp_path / "state"))).close()
    assert not (tmp_path / "trap").exists()


def test_a_writer_finds_hardware_that_has_come_when_it_looks_again(tree: Path, tmp_path: Path) -> None:
    late = tmp_path / "late"
    (tree / CPU / "cpufreq/policy3").rename(late)
    before, node_lock = limits(tree), tmp_path / "lock"
    writer = writer_on(tree, tmp_path / "state", lock=node_lock)
    with contextlib.closing(writer):
        writer.start()
        writer.apply({CLOCKS[0]: 1_500_000, LIMIT: 90_000_000})
        assert writer.lacks(CLOCKS) == [CLOCKS[3]] and limits(tree) != before
        late.rename(tree / CPU / "cpufreq/policy3")
        writer.look_again()
        assert limits(tree) == before | {f"{CPU}/cpufreq/policy3/scaling_max_freq": str(MAX_KHZ)}
        assert writer.lacks(CLOCKS) == [] and f"/{POWERCAP}/intel-rapl:0/energy_uj" in writer.opened
        assert is_locked(str(node_lock)), "no other agent may come in between"
        writer.start()
        assert {outcome.status for outcome in writer.apply(MOVED)} == {"written"} and is_moved(tree)
    assert within(PATIENCE_S, lambda: set(limits(tree).values()) == {str(MAX_KHZ), "150000000"})
