"""A partition of real processes: caps are granted, lowered, raised; what is killed breaks no promise."""

import signal
import time

import pytest

from tests.fabric.cluster import Cluster, boottime_s
from tests.waiting import PATIENCE_S


def both_at(cluster: Cluster, watts: float) -> bool:
    """Their histories say so: they come a moment after the hardware."""
    ends = [next(reversed(cluster.history(name)), None) for name in cluster.names]
    return all(end and end[1] == "done" and abs(end[2] / 1000 - watts) < 1.0 for end in ends)


def has_lapsed(cluster: Cluster, name: str, since_s: float) -> bool:
    return any(due_ns and what == "done" and at_ns > since_s * 1e9 for at_ns, what, _, due_ns in cluster.history(name))


def test_a_partition_is_capped_lowered_and_raised_and_every_cap_is_explained(tmp_path):
    with Cluster(tmp_path, 1400.0) as cluster:
        serve = cluster.serve()
        for n in range(3):
            cluster.node(f"n{n}", cap_w=400.0)
        cluster.until(lambda: both_at(cluster, 1400.0 / 3))
        cluster.until(lambda: all(row["state"] == "capped" for row in cluster.ask("nodes")))  # a report later
        rows = {row["name"]: row for row in cluster.ask("nodes")}
        assert abs(rows["n1"]["granted_w"] - 466.7) < 0.1
        refused = cluster.ctl("budget", "set", "400")
        assert refused.returncode == 2
        assert "50 W less than fixed_w and the minimal operating power of 3 nodes" in refused.stderr
        dry = cluster.ctl("budget", "set", "900", "--dry-run")
        assert "3 less, 0 more" in dry.stdout
        assert cluster.ctl("budget", "set", "900").returncode == 0
        cluster.until(lambda: both_at(cluster, 300.0))
        cluster.budget_w = 900.0
        cluster.watch(0.3)
        cluster.budget_w = 1200.0
        assert cluster.ctl("budget", "set", "1200").returncode == 0
        cluster.until(lambda: both_at(cluster, 400.0))
        lines = cluster.ctl("why", "n2").stdout
        assert (
            "budget 1200 W" in lines
            and "wanted: 400.0 W by fspc: the same part of TDP as for every node" in lines
            and "granted: 400 W" in lines
        )
        cluster.until(lambda: cluster.ask("why", "n2")["in_force_w"] == 400.0)  # a report later
        told = cluster.ask("why", "n2")
        assert (told["wanted_w"], told["granted_w"], told["in_force_w"], told["counts_w"]) == (400.0,) * 4
        assert (told["sharer"], told["budget_w"], told["waits_for"]) == ("fspc", 1200.0, "")
        unknown = cluster.ctl("why", "n9")
        assert unknown.returncode == 2 and "no node is called 'n9' (nearest: n" in unknown.stderr
        log = cluster.ask("budget", "log")
        assert [one["what"] for one in log] == ["set 1200 W by hand", "set 900 W by hand"]
        assert log[0]["who"] == "root"
        assert cluster.end(serve) == 0


def test_a_node_that_joins_gets_watts_only_after_the_others_have_given_them_up(tmp_path):
    with Cluster(tmp_path, 900.0) as cluster:
        cluster.serve()
        cluster.node("n0", cap_w=400.0)
        cluster.until(lambda: cluster.cap_w("n0") == 500.0)
        cluster.node("n1", cap_w=200.0)  # it has a low cap until then
        cluster.until(lambda: both_at(cluster, 450.0), is_kept=True)
        full_ns = next(at_ns for at_ns, what, cap_mw, _ in cluster.history("n0") if what == "done" and cap_mw > 499_000)
        lowered_ns = next(at_ns for at_ns, what, cap_mw, _ in cluster.history("n0")
                          if at_ns > full_ns and what == "done" and cap_mw < 451_000)  # fmt: skip
        raised_ns = next(at_ns for at_ns, _, cap_mw, _ in cluster.history("n1") if cap_mw > 201_000)
        assert lowered_ns < raised_ns


def test_a_cluster_agent_that_is_killed_takes_up_where_it_was(tmp_path):
    with Cluster(tmp_path, 1000.0) as cluster:
        first = cluster.serve()
        for n in range(3):
            cluster.node(f"n{n}", cap_w=200.0)
        cluster.until(lambda: both_at(cluster, 1000.0 / 3))
        first.kill()
        first.wait()
        second = cluster.serve()
        cluster.until(lambda: "epoch 2" in cluster.said())
        cluster.until(lambda: all(row["state"] == "capped" for row in cluster.ask("nodes") or [{"state": ""}]))
        cluster.until(lambda: both_at(cluster, 1000.0 / 3))
        second.kill()
        second.wait()
        cluster.until(lambda: both_at(cluster, 200.0))  # leases have run out: the safe cap
        cluster.serve()
        cluster.until(lambda: both_at(cluster, 1000.0 / 3))
        assert "epoch 3" in cluster.said()


def test_a_node_agent_that_is_killed_costs_its_watts_until_its_lease_is_over(tmp_path):
    with Cluster(tmp_path, 800.0) as cluster:
        cluster.serve()
        victim = cluster.node("n0", cap_w=200.0)
        cluster.node("n1", cap_w=200.0)
        cluster.until(lambda: both_at(cluster, 400.0))
        killed_s = time.monotonic()
        victim.kill()
        victim.wait()
        cluster.fall("n0", 200.0)
        cluster.until(lambda: cluster.cap_w("n1") == 500.0)
        assert time.monotonic() - killed_s > 1.0, "its watts were not given away before its lease was over"
        states = {row["name"]: row["state"] for row in cluster.ask("nodes")}
        assert states == {"n0": "silent", "n1": "capped"}
        cluster.node("n0")
        cluster.until(lambda: both_at(cluster, 400.0))


def test_a_node_leaves_only_when_there_is_room_for_all_that_it_can_draw(tmp_path):
    with Cluster(tmp_path, 1000.0) as cluster:
        cluster.serve()
        leaver = cluster.node("n0", cap_w=200.0)
        for n in (1, 2):
            cluster.node(f"n{n}", cap_w=200.0)
        cluster.until(lambda: both_at(cluster, 1000.0 / 3))
        leaver.terminate()
        cluster.until(lambda: leaver.poll() is not None)
        assert cluster.cap_w("n0") == 500.0


def test_observing_decides_and_shows_and_grants_nothing(tmp_path):
    with Cluster(tmp_path, 800.0, mode="observe") as cluster:
        cluster.serve()
        for n in range(2):
            cluster.node(f"n{n}", cap_w=300.0)
        cluster.until(lambda: len([r for r in cluster.ask("nodes") or [] if r["wanted_w"] == 400.0]) == 2)
        assert both_at(cluster, 300.0)
        assert "observe mode" in cluster.ctl("why", "n0").stdout


def test_a_second_cluster_agent_on_the_same_socket_is_refused_before_it_takes_the_epoch(tmp_path):
    with Cluster(tmp_path, 800.0) as cluster:
        first = cluster.serve()
        cluster.until(lambda: cluster.socket.exists())
        second = cluster.serve()
        assert second.wait(PATIENCE_S) == 1
        assert "another cluster agent is" in cluster.said()
        assert first.poll() is None
        assert cluster.ask("budget", "show")["epoch"] == 1


def test_a_schedule_is_followed_ahead_of_its_drops(tmp_path):
    with Cluster(tmp_path, 1000.0) as cluster:
        cluster.serve()
        for n in range(2):
            cluster.node(f"n{n}", cap_w=200.0)
        cluster.until(lambda: both_at(cluster, 500.0))
        drop_s = time.time() + 6.0
        (tmp_path / "plan.csv").write_text(f"time,watts\n{drop_s:.2f},600\n")
        assert cluster.ctl("budget", "schedule", str(tmp_path / "plan.csv")).returncode == 0
        cluster.until(lambda: both_at(cluster, 300.0))
        assert time.time() < drop_s, "it was obeyed before it came"
        (tmp_path / "plan.csv").write_text("2001-01-01T00:00:00+00:00,600\n")
        past = cluster.ctl("budget", "schedule", str(tmp_path / "plan.csv"))
        assert past.returncode == 2 and "the schedule is past" in past.stderr
        (tmp_path / "plan.csv").write_text(f"time,watts\n{time.time() + 3600:.2f},500\n")
        assert cluster.ctl("budget", "schedule", str(tmp_path / "plan.csv")).returncode == 0
        told = cluster.ctl("budget", "set", "590").stdout.splitlines()
        assert told[:2] == [
            "set 590 W; in force in 2.5 s at the latest",
            "announced steps that are void now: 1",
        ]


def test_what_nodes_could_draw_is_known_at_every_instant_from_their_histories(tmp_path):
    with Cluster(tmp_path, 900.0) as cluster:
        cluster.names = ["n0", "n1"]
        s = 1_000_000_000
        n0 = [f"{s} done 400000 0", f"{5 * s} begun 200000 {4 * s}", f"{5 * s + 7} done 200000 {4 * s}"]
        n1 = [f"{s} done 400000 0", f"{2 * s} begun 600000 0", f"{2 * s + 1} done 600000 0",
              f"{2 * s + 2} begun 300000 0", f"{2 * s + 3} done 300000 0", f"{4 * s + 1} begun 700000 0"]  # fmt: skip
        for name, lines in (("n0", n0), ("n1", n1)):
            (tmp_path / f"{name}.history").write_text("\n".join(lines) + "\n")
        assert cluster.highest_w(1.5, 3.0) == 1000.0, "for three nanoseconds, which no look would have met"
        assert cluster.highest_w(3.0, 3.5) == 700.0
        assert cluster.highest_w(3.0) == 1100.0, "n0 ended its lease a second late, and n1 did not wait"
        assert cluster.highest_w(3.0, is_excused=True) == 900.0
        assert cluster.latest_s() == pytest.approx(1.0)
        with pytest.raises(AssertionError, match=r"1000.0 W of 900.0 W"):
            cluster.check(1.5, patience_s=0.1)


def test_a_node_that_is_not_scheduled_in_time_breaks_the_premise_and_not_the_ledger(tmp_path):
    with Cluster(tmp_path, 800.0) as cluster:
        cluster.serve()
        stopped = cluster.node("n0", cap_w=200.0)
        cluster.node("n1", cap_w=200.0)
        cluster.until(lambda: both_at(cluster, 400.0))
        stopped.send_signal(signal.SIGSTOP)
        begin_s = boottime_s()
        cluster.until(lambda: cluster.cap_w("n1") == 500.0, is_kept=False)
        woken_s = boottime_s()
        stopped.send_signal(signal.SIGCONT)
        cluster.until(lambda: has_lapsed(cluster, "n0", begin_s), is_kept=False)
        assert cluster.latest_s() > 0.0
        assert cluster.highest_w(begin_s, woken_s) == 900.0, "the other one got what it must have lost"
        assert cluster.highest_w(begin_s, woken_s, is_excused=True) == 800.0
