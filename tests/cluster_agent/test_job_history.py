"""The history of jobs: what their nodes counted, through lost reports, restarts, kills, and people who want to be
forgotten."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from cluster_agent.errors import ClusterError, StoreError
from cluster_agent.history import kept_rows
from cluster_agent.history.history_requests import LATE_S, HistoryRequests, PhaseFolder
from cluster_agent.history.job_history import HistoryRow, JobHistory, Pseudonyms
from cluster_agent.history.kept_rows import KeptRows
from cluster_agent.history.usage import Use, measured
from cluster_agent.jobs.foreign_jobs import ForeignJobs
from cluster_agent.jobs.job import Account, Job, JobSpec
from cluster_agent.serve.people_protocol import ForgetHistory, ListHistory
from cluster_agent.slurm.job_joules import JobJoules
from foundation.wire.power_messages import Report
from tests.cluster_agent.test_phase_tables import kept
from tests.fabric.links import report
from tests.slurm.test_joules import DECLARED, NODES, SLURM, Head


def heard(at_s: float, node: str = "n1", boot: str = "b", **counts: int) -> Report:
    """A report at this time of the node's clock."""
    return report(node, boot_id=boot, report_id=round(at_s * 1e9), **counts)


def counted(at_s: float, watts: float = 200.0, **more: int) -> Report:
    """Counts that grow evenly: 2e9 instructions and 1e9 cycles a second."""
    counts = {"energy_mj": round(1000 * watts * at_s), "instructions": round(2e9 * at_s), "cycles": round(1e9 * at_s)}
    return heard(at_s, power_mw=round(1000 * watts), **counts, **more)


def row(job: str = "7", user: str = "ada", ended_s: float = 1e9, **more: object) -> HistoryRow:
    return HistoryRow(job, user, "cfd", 1, ended_s - 100, ended_s - 90, ended_s, 90.0, **more)  # type: ignore[arg-type]


def test_a_jobs_ratios_are_of_counts_over_the_same_time_and_lost_reports_lose_nothing() -> None:
    every, few = Use(), Use()
    for second in range(0, 601, 10):
        every.hear(counted(second))
        if second in (0, 20, 600):
            few.hear(counted(second))
    for use in (every, few):
        found = measured(use)
        assert (found.mean_w, found.ipc, found.covered_s) == (pytest.approx(200.0), pytest.approx(2.0), 600.0)
    assert measured(every).p95_w == pytest.approx(200.0, rel=0.011)
    assert measured(every).stalled is None and measured(every).units_per_s is None  # no node counts them


def test_watts_of_parts_are_kept_from_the_upgrade_of_the_cluster_agent_on() -> None:
    use = Use()
    for second in (0, 100, 200):
        use.hear(counted(second, cpu_mj=150_000 * second, memory_mj=20_000 * second))
        if second == 0:
            del use.nodes["n1"].last["cpu_mj"]  # as an older one has saved it
    found = measured(use)
    assert (found.cpu_w, found.memory_w) == (pytest.approx(150.0), pytest.approx(20.0))
    assert use.total("cpu_mj")[1] == 100.0 and found.gpu_w is None


def test_parts_with_meters_of_their_own_have_a_distribution_too() -> None:
    use, mj = Use(), 0
    for second in range(0, 1001, 10):
        watts = 300 if second > 900 else 50
        mj += 0 if second == 0 else 10 * watts * 1000
        use.hear(heard(second, energy_mj=4 * mj, cpu_mj=mj, memory_mj=-1 if second == 500 else mj // 5))
    saved = msgspec.json.decode(msgspec.json.encode(use), type=Use)
    found = measured(saved)
    assert found.cpu_p95_w == pytest.approx(300.0, rel=0.011) and found.cpu_highest_w == 300.0
    assert found.memory_highest_w == 60.0 and found.memory_p95_w == pytest.approx(60.0, rel=0.011)
    assert found.highest_w == 1200.0 and found.gpu_p95_w is found.gpu_highest_w is None
    assert saved.parts["memory"].share_w(0.5) == pytest.approx(10.0, rel=0.011)


def test_the_95th_percentile_is_of_time_not_of_reports() -> None:
    use, mj = Use(), 0
    for second in range(0, 1001, 10):
        watts = 400 if second > 900 else 100  # for a tenth of its time
        mj += 0 if second == 0 else 10 * watts * 1000
        use.hear(heard(second, energy_mj=mj))
    found = measured(use)
    assert found.p95_w == pytest.approx(400.0, rel=0.011)
    assert found.highest_w == 400.0 and use.share_w(0.5) == pytest.approx(100.0, rel=0.011)
    assert found.mean_w == pytest.approx(130.0)


def test_a_count_that_fell_has_begun_again_and_one_that_is_unknown_is_left_out() -> None:
    use = Use()
    use.hear(heard(0, instructions=100, cycles=100))
    use.hear(heard(10, instructions=300, cycles=200))
    use.hear(heard(20, instructions=50, cycles=10))  # its agent was restarted
    use.hear(heard(30, instructions=250, cycles=110))
    use.hear(heard(40, instructions=-1, cycles=210))
    assert measured(use).ipc is None or measured(use).ipc == pytest.approx(2.0, rel=0.4)
    assert use.total("instructions") == (400, 20.0)
    use.hear(heard(50, boot="b2", instructions=10**12, cycles=10**12))
    assert use.total("instructions") == (400, 20.0)


def test_reports_that_follow_closely_are_passed_over_until_the_job_ends() -> None:
    use = Use()
    for second in range(6):
        use.hear(counted(second))
    assert use.total("energy_mj") == (0, 0)
    use.hear(counted(6), is_last=True)
    assert measured(use).mean_w == pytest.approx(200.0)


def test_a_kill_loses_no_counts_of_a_job_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "history"
    before = JobHistory(path)
    before.hear([counted(100)], {"n1": "7"})
    before.step(0.0, 1e9)
    before.hear([counted(200)], {"n1": "7"})  # in memory only
    after = JobHistory(path)
    after.hear([counted(400)], {"n1": "7"})
    after.ended("7", row(), [counted(401)])
    (found,) = JobHistory(path).rows(0.0, "", 10)
    assert found.measured.mean_w == pytest.approx(200.0) and found.measured.covered_s == pytest.approx(301.0)


def test_a_job_that_shared_its_node_has_a_row_without_counts(tmp_path: Path) -> None:
    history = JobHistory(tmp_path / "history")
    history.hear([counted(0)], {"n1": "7"})
    history.ended("7", row(is_shared=True), [counted(50)])
    assert history.rows(0.0, "", 1)[0].measured.mean_w is None


def test_the_history_is_bounded_and_survives_damage_and_a_half_written_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_rows, "MOST_BYTES", 4000)
    path = tmp_path / "history"
    history = JobHistory(path)
    for number in range(200):
        history.ended(str(number), row(str(number), ended_s=1e9 + number), [])
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2 * 4300
    with open(path, "ab") as file:
        file.write(b'\xff{"x":1}\n' + msgspec.json.encode(row("half"))[:-9])
    again = JobHistory(path)
    again.ended("201", row("201", ended_s=2e9), [])
    kept = [one.job for one in JobHistory(path).rows(0.0, "", 1000)]
    assert kept[-2:] == ["199", "201"] and "half" not in kept


def test_history_that_a_kill_cut_off_at_any_byte_keeps_all_that_was_whole(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history = JobHistory(path)
    for number in range(3):
        history.ended(str(number), row(str(number)), [])
    history.hear([counted(0)], {"n1": "7"})
    history.save()
    rows, running = path.read_bytes(), (tmp_path / "history-running").read_bytes()
    last = len(rows) - len(rows.splitlines()[-1]) - 1
    for cut in range(last, len(rows) - 1):
        path.write_bytes(rows[:cut])
        (tmp_path / "history-running").write_bytes(running[: cut % len(running)])
        again = JobHistory(path)
        again.hear([counted(100), counted(120)], {"n1": "7"})
        again.ended("7", row(), [])
        (*whole, new) = JobHistory(path).rows(0.0, "", 9)
        assert [one.job for one in whole] == ["0", "1"], cut
        assert new.measured.mean_w == pytest.approx(200.0) and new.measured.covered_s == 20.0


def test_a_forgotten_user_leaves_no_row_and_none_of_the_jobs_that_run(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history = JobHistory(path)
    for number, user in enumerate(("ada", "bob", "ada")):
        history.ended(str(number), row(str(number), user), [])
    history.hear([counted(0)], {"n1": "7"})
    assert history.forget("ada", ["7"]) == 2
    again = JobHistory(path)
    again.ended("7", row("7"), [])
    assert [one.user for one in again.rows(0.0, "", 9)] == ["bob"]
    assert b"ada" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
    again.ended("8", row("8"), [])  # submitted after that
    assert len(again.rows(0.0, "ada", 9)) == 1


def test_rows_that_cannot_be_removed_are_not_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = JobHistory(tmp_path / "history")
    history.ended("1", row(), [])

    def fails(self: object, keeps: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(KeptRows, "keep_only", fails)
    with pytest.raises(ClusterError, match="No space left on device; nothing is forgotten"):
        history.forget("ada", [])


def test_old_rows_go_after_the_days_that_are_set(tmp_path: Path) -> None:
    history = JobHistory(tmp_path / "history", keep_days=10)
    for day in range(30):
        history.ended(str(day), row(str(day), ended_s=86_400.0 * day), [])
    history.step(0.0, 86_400.0 * 30)
    assert [one.job for one in history.rows(-1.0, "", 99)] == [str(day) for day in range(20, 30)]


def test_a_wall_clock_that_jumps_ahead_lets_no_row_go_before_a_day_and_one_that_jumps_back_none(
    tmp_path: Path,
) -> None:
    day_s, now_s, year_s = 86_400.0, 0.0, 365 * 86_400.0
    history = JobHistory(tmp_path / "history", keep_days=10)
    history.ended("1", row("1", ended_s=1e9), [])
    for wall_s in (1e9, 1e9 + day_s + year_s, 1e9 + 2 * day_s, 5.0, 1e9 + 4 * day_s):
        history.step(now_s, wall_s)
        now_s += day_s
    assert [one.job for one in history.rows(0.0, "", 9)] == ["1"]
    for later in range(3):  # the clock is right that a year has passed
        history.step(now_s + later * day_s, 1e9 + year_s + later * day_s)
    assert history.rows(0.0, "", 9) == []


def test_pseudonyms_are_the_same_with_one_key_and_others_with_another(tmp_path: Path) -> None:
    first, again = (Pseudonyms.of(tmp_path / "key") for _ in range(2))
    other = Pseudonyms.of(tmp_path / "other")
    one = first.row(row())
    assert one == again.row(row()) and one.user != other.row(row()).user
    assert "ada" not in json.dumps(msgspec.to_builtins(one)) and one.user.startswith("user-")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_a_key_of_pseudonyms_that_a_kill_has_cut_off_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"")
    with pytest.raises(ClusterError, match=r"key: a key of pseudonyms has 32 bytes, and this 0: remove it$"):
        Pseudonyms.of(tmp_path / "key")


def test_names_of_any_length_and_script_are_kept_within_bounds(tmp_path: Path) -> None:
    history = JobHistory(tmp_path / "history")
    named = msgspec.structs.replace(row(), application="计" * 10_000, user="a\0\n" * 500)
    history.ended("7", named, [])
    (found,) = JobHistory(tmp_path / "history").rows(0.0, "", 9)
    assert len(found.application) == 256 and len(found.user) == 256


def test_a_watt_count_that_no_node_has_is_no_watt() -> None:
    use = Use()
    use.hear(heard(0, energy_mj=0))
    use.hear(heard(10, energy_mj=1 << 60))
    assert measured(use).p95_w is None and measured(use).highest_w is None


# --- in the cluster agent


class Recording(Head):
    """Passes the reports of its nodes on to the history, too, as the agent's loop does."""

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            made = []
            for number, node in enumerate(NODES, start=1):
                self.mj[node] += number * 100_000
                made.append(
                    report(node, boot_id=self.boots[node], report_id=round(self.now_s * 1e9), declaration=DECLARED,
                           energy_mj=self.mj[node], power_mw=100_000 * number,
                           instructions=round(self.now_s * 3e9), cycles=round(self.now_s * 2e9))
                )  # fmt: skip
            self.server.partition.hear(self.now_s, made)
            self.server.history.hear(self.now_s, 1e9 + self.now_s, made)

    def history(self, user: str = "") -> list[HistoryRow]:
        found: list[HistoryRow] = self.server.handlers[ListHistory](SLURM, ListHistory(user=user))
        return found

    def forget(self, user: str) -> list[str]:
        found: list[str] = self.server.handlers[ForgetHistory](SLURM, ForgetHistory(user))
        return found


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Recording]:
    made = Recording(tmp_path)
    yield made
    made.server.close()


def test_slurms_jobs_have_history_through_a_restart_of_the_agent(head: Recording) -> None:
    head.run(1)
    head.start("8", "n[1-2]", user="ada", title="cfd", submitted_s=5)
    head.run(40)
    head.restart()
    head.run(60)
    head.end("8")
    (one,) = head.history()
    assert (one.user, one.application, one.nodes, one.manager, one.submitted_s) == ("ada", "cfd", 2, "hpc", 5.0)
    assert one.measured.mean_w == pytest.approx(150.0, rel=0.01)
    assert one.measured.ipc == pytest.approx(1.5) and one.measured.highest_w == pytest.approx(200.0, rel=0.01)
    assert one.watts == pytest.approx(300.0, rel=0.03) and one.run_s == pytest.approx(100.0)
    assert one.measured.covered_s > 2 * 80


def test_a_user_is_forgotten_at_once_and_his_running_job_too(head: Recording) -> None:
    head.run(1)
    for user, node in (("ada", "n1"), ("bob", "n2")):
        head.start(f"of-{user}", node, user=user)
        head.run(15)
        head.end(f"of-{user}")
    head.start("runs", "n1", user="ada")
    head.run(15)
    line, phases = head.forget("ada")
    assert phases == "no phases of ada's programs are kept"
    assert line == (
        "1 jobs of ada are forgotten, and the joules of 1 of another manager;"
        " nothing will be kept of the 1 that run now"
    )
    head.restart()
    head.end("runs")
    assert [one.user for one in head.history()] == ["bob"] and head.history("ada") == []
    stored = [file for file in head.at.iterdir() if ".history" in file.name]
    assert stored and not any(b"ada" in file.read_bytes() for file in stored)


def test_phases_of_a_job_are_taken_until_a_moment_after_its_end_and_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    spec, news = JobSpec(["/opt/solver"], 60, "/"), list[Any]()
    jobs = {1: Job(1, 1, "ada", spec, 0.0, "done", 1, ["n1"], ended_s=1000.0)}

    def find(numbers: list[int]) -> list[Job]:
        if numbers == [9]:
            raise StoreError("no space left on device")
        return [jobs[number] for number in numbers]

    now = SimpleNamespace(s=1000.0 + LATE_S + 1)
    service = SimpleNamespace(
        is_open=True, live=SimpleNamespace(jobs={}), store=SimpleNamespace(find=find), now=lambda: now.s, job_on={}
    )
    made = HistoryRequests(
        JobHistory(tmp_path / "history"), lambda: cast(Any, service), ForeignJobs(tmp_path / "notices"),
        JobJoules(tmp_path / "joules"), dict,
        lambda: cast(Any, SimpleNamespace(phase_news=lambda: news, send_phases=lambda *given: True)),
        PhaseFolder(tmp_path / "phases", time.time, print),
    )  # fmt: skip
    news += [kept(9), kept(1)]
    for expected in (0, 1):
        made.hear(float(expected), 1e9, [])
        assert len(made._phases.rows("")) == expected
        now.s -= 2.0


def test_a_job_of_ours_has_a_row_with_its_request_caps_and_counts(tmp_path: Path) -> None:
    history = JobHistory(tmp_path / "history")
    shown = SimpleNamespace(as_shown=lambda unix_s: unix_s + 100.0, job_on={"n1": "7"})
    newest = {"n1": counted(61)}
    made = HistoryRequests(
        history, lambda: cast(Any, shown), ForeignJobs(tmp_path / "notices"), JobJoules(tmp_path / "joules"),
        lambda: newest, lambda: cast(Any, SimpleNamespace(phase_news=list)),
        PhaseFolder(tmp_path / "phases", time.time, print),
    )  # fmt: skip
    for second in (0, 30):
        made.hear(float(second), 1e9, [counted(second), counted(second)])
    account = Account({"measured": 12_000.0}, covered_s=60.0, cap_j=15_000.0, capped_s=60.0)
    spec = JobSpec(["./cfd"], 3600, "/", cores=16)
    made.own_ended(Job(7, 1000, "ada", spec, 5.0, "done", 1, ["n1"], started_s=10.0, ended_s=71.0, account=account))
    (one,) = history.rows(0.0, "ada", 9)
    assert (one.application, one.cores, one.request_s, one.state, one.manager) == ("cfd", 16, 3600, "done", "")
    assert (one.submitted_s, one.began_s, one.ended_s, one.run_s) == (105.0, 110.0, 171.0, 61.0)
    assert (one.watts, one.cap_w, one.energy_j) == (200.0, 250.0, 12_000.0)
    assert one.measured.ipc == pytest.approx(2.0) and one.measured.covered_s == 61.0
    made.own_ended(Job(8, 1000, "ada", spec, 5.0, "cancelled"))  # it never ran
    assert len(history.rows(0.0, "ada", 9)) == 1
