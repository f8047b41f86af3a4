"""``clusterctl models``: a candidate predicts silently, proves itself, is promoted, drifts and is rolled back."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from cluster_agent.cli import main
from cluster_agent.commands.learning import model_service, predict, training_job
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.history.job_history import HistoryRow
from cluster_agent.model_service.group_table import GroupTable
from cluster_agent.model_service.job_records import JobWords, open_ring
from cluster_agent.model_service.model_registry import Change, Metrics, Registry
from cluster_agent.model_service.model_run import RUN, Waiting, run_model
from cluster_agent.model_service.model_training import train
from cluster_agent.model_service.on_line_errors import LEAST_WINDOW, Pairs, errors, psi
from cluster_agent.prediction.job_power import PowerPredictor
from cluster_agent.prediction.models import MOST_FAILURES, SafePredictor, find_model
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.serve.people_protocol import Submit
from tests.cluster_agent.ended_jobs import HOUR_S, ended, history_row, records, submission
from tests.waiting import PATIENCE_S

TRAINED = 400
LATER_S = TRAINED * HOUR_S + HOUR_S


class Site:
    """A folder of models with one, ``watts``, and the jobs that end there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.registry = folder, Registry(folder, "watts")
        self.words = JobWords(folder, is_made=True)

    def train(self, factor: float = 1.0, **more: Any) -> int:
        return train(self.registry, records(self.folder, TRAINED, factor=factor, **more)).card.version

    def end(self, count: int, begin_s: float = LATER_S, factor: float = 1.0) -> None:
        ring = open_ring(self.folder, 10_000)
        ring.append(records(self.folder, count, begin_s, factor, seed=9))
        ring.close()

    def promote(self, version: int) -> None:
        was = self.registry.champion().version
        self.registry.change(Change(version, was, 1.0, "root", "by the test", is_forced=True))

    def run(self, promotes: bool = False, waiting: tuple[Waiting, ...] = ()) -> Any:
        ring = open_ring(self.folder, 10_000)
        try:
            return run_model(self.registry, ring, self.words, waiting, promotes)
        finally:
            ring.close()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "models")


def status(site: Site, *arguments: str) -> int:
    return main(["models", *arguments, "--folder", str(site.folder)])


def test_a_better_candidate_is_promoted_and_a_worse_one_is_not_but_by_force(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.train(factor=1.3)
    site.promote(1)
    site.train()
    site.end(200)
    assert site.run().state.pairs.jobs == 200
    assert status(site, "promote", "watts") == 0
    said = capsys.readouterr().out
    assert re.match(r"watts: version 2 predicts now: its error is lower than that of version 1 by 0\.1\d+ \(\+", said)
    site.train(factor=1.3)
    site.end(200, LATER_S + 200 * HOUR_S)
    site.run()
    assert status(site, "promote", "watts") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "version 3 is not promoted: its error is higher than that of version 2 by 0.1" in line
    assert site.registry.champion().version == 2
    assert status(site, "promote", "watts", "--force") == 0
    newest = site.registry.champion().changes[0]
    assert (newest.version, newest.was, newest.is_forced) == (3, 2, True)
    assert status(site, "status") == 0 and "(forced): version 3 predicts" in capsys.readouterr().out


def test_without_a_comparison_nobody_is_promoted(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.train(factor=1.3)
    site.promote(1)
    site.train()
    for count in (0, 99):
        if count:
            site.end(count)
        site.run()
        assert status(site, "promote", "watts") == 1
        assert "too few jobs compare it with version 1" in capsys.readouterr().err
    assert status(site, "promote", "watts", "1") == 2 and "is champion already" in capsys.readouterr().err


def test_the_first_champion_has_to_beat_the_nearest_past_jobs(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.train()
    metrics = site.registry.version(1).metrics
    assert metrics.judged == TRAINED // 5 and metrics.error == pytest.approx(metrics.nearest_error, abs=0.02)
    assert status(site, "promote", "watts") == 1
    assert "nearest past jobs" in capsys.readouterr().err


def test_only_jobs_that_both_had_not_seen_are_compared_and_each_once(site: Site) -> None:
    site.train()
    site.promote(1)
    train(site.registry, records(site.folder, TRAINED + 100))
    site.end(150)  # the first hundred of these were submitted before the second training ended
    assert site.run().state.pairs.jobs == 50
    assert site.run().state.pairs.jobs == 50
    site.end(10, LATER_S + 150 * HOUR_S)
    assert site.run().state.pairs.jobs == 60


def test_a_run_that_is_killed_before_its_end_is_repeated_and_counts_no_job_twice(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.train()
    site.promote(1)
    site.train(factor=1.1)
    site.end(120)
    calls = 0
    for step in ("replace", "fsync"):
        for at in range(1, 4):
            with monkeypatch.context() as patch:
                calls = 0
                really = getattr(os, step)

                def dies(*arguments: Any, at: int = at, really: Any = really, **options: Any) -> Any:
                    nonlocal calls
                    calls += 1
                    if calls == at:
                        raise KeyboardInterrupt
                    return really(*arguments, **options)

                patch.setattr(os, step, dies)
                try:
                    site.run()
                except KeyboardInterrupt:
                    continue
            assert site.run().state.pairs.jobs == 120
    assert calls >= 1 and site.run().state.pairs.jobs == 120


def test_a_champion_whose_errors_grow_is_rolled_back_with_an_alarm_to_one_that_fits(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.train()
    site.promote(1)
    site.train(factor=2.0)
    site.promote(2)
    site.end(LEAST_WINDOW - 1)
    assert site.run().lines == [], "too few jobs say nothing"
    site.end(1, LATER_S + LEAST_WINDOW * HOUR_S)
    (line,) = site.run().lines
    assert re.match(r"ALARM: version 2 was rolled back: its error on the last 300 jobs is 0\.(49|50)", line)
    assert line.endswith("version 1 predicts")
    champion = site.registry.champion()
    assert (champion.version, champion.changes[0].is_rollback, champion.taken_back) == (1, True, {2})
    assert site.run().lines == [] and site.run().candidate == 0, "a version that was rolled back is no candidate"
    assert status(site, "status", "watts") == 1 and "ALARM" in capsys.readouterr().out
    site.promote(2)
    assert site.registry.champion().alarm == "" and site.registry.champion().taken_back == set()


def test_where_no_former_champion_fits_the_nearest_past_jobs_predict(site: Site) -> None:
    site.train(factor=3.0)
    site.promote(1)
    site.train(factor=2.0)
    site.promote(2)
    site.end(LEAST_WINDOW)
    found = site.run(waiting=(Waiting("7", submission(1)),))
    assert found.champion == 0 and found.published is None
    assert found.lines[0].endswith("the nearest past jobs predict")
    said = list[str]()
    power = SafePredictor(find_model(str(site.registry.path)), PowerPredictor(lambda job: 1000.0), said.append)
    for _ in range(MOST_FAILURES + 1):
        assert power.predict(submission(1)).origin == "TDP"
    site.promote(1)
    assert power.predict(submission(1)).origin == "model" and said == []


def test_a_forced_champion_that_nobody_judged_has_to_do_as_well_as_the_nearest_past_jobs(site: Site) -> None:
    """Its training had so few jobs that none was left to judge it: it has no error of its own to be compared with."""
    train(site.registry, records(site.folder, 60, factor=1.5))
    made = site.registry.version(1)
    registry = Registry(site.folder, "unjudged")
    version = registry.add(replace(made.card, error=None), Metrics(), made.table)
    registry.change(Change(1, 0, 1.0, "root", "by the test", is_forced=True))
    site.end(LEAST_WINDOW, begin_s=version.card.known_s + HOUR_S)
    site.registry = registry
    (line,) = site.run().lines
    assert re.match(
        r"ALARM: version 1 was rolled back: its error on the last 300 jobs is 0\.3\d+, above the alarm of 0\.1\d+ that"
        r" the nearest past jobs set, as its training had too few jobs to judge it",
        line,
    )


def test_a_forced_champion_that_nobody_judged_stays_while_it_does_well(site: Site) -> None:
    site.train()
    made = site.registry.version(1)
    registry = Registry(site.folder, "unjudged")
    registry.add(replace(made.card, error=None), Metrics(), made.table)
    registry.change(Change(1, 0, 1.0, "root", "by the test", is_forced=True))
    site.end(LEAST_WINDOW)
    site.registry = registry
    found = site.run()
    assert found.lines == [] and found.champion == 1
    assert found.state.drift.by_nearest and found.state.drift.error < found.state.drift.most_error


@pytest.mark.parametrize(("nodes", "factor", "is_alarm"), [(2, 1.1, False), (64, 1.0, False), (64, 1.1, True)])
def test_where_inputs_are_others_a_smaller_rise_of_the_error_is_an_alarm(
    site: Site, nodes: int, factor: float, is_alarm: bool
) -> None:
    """Other inputs alone are none: in real logs they come and go, while errors stay what they were."""
    site.train()
    site.promote(1)
    later = records(site.folder, LEAST_WINDOW, LATER_S, factor)
    later["nodes"] = nodes
    ring = open_ring(site.folder, 10_000)
    ring.append(later)
    ring.close()
    lines = site.run().lines
    assert len(lines) == is_alarm
    assert all(re.search(r"their nodes \(PSI \d.* are not those of its training", line) for line in lines)


def test_a_rollback_by_hand_goes_to_the_champion_before_and_then_to_none(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    for version in (1, 2):
        site.train(factor=float(version))
        site.promote(version)
    assert status(site, "rollback", "watts", "--why", "it was late") == 0
    assert status(site, "rollback", "watts") == 0
    assert capsys.readouterr().out.splitlines() == [
        "watts: version 1 predicts now", "watts: the nearest past jobs predict now"
    ]  # fmt: skip
    assert [change.why for change in site.registry.champion().changes[:2]] == ["by hand", "it was late"]
    odd = '\x7f\x1b[31m\n"]\\ \udcff \u20ac'  # what a shell can give
    assert status(site, "rollback", "watts", "--to", "2", "--why", odd) == 0
    assert site.registry.champion().changes[0].why == odd.replace("\udcff", "?")
    assert status(site, "status") == 0 and "\x1b" not in capsys.readouterr().out
    assert status(site, "rollback", "watts", "--to", "0") == 0
    assert status(site, "rollback", "watts") == 2
    assert status(site, "rollback", "watts", "--to", "9") == 2
    assert "there is no version 9" in capsys.readouterr().err


def test_a_model_that_says_one_watt_for_ever_is_within_the_rule_and_is_rolled_back(site: Site) -> None:
    """It can be admitted with no more than the rule permits, and what it says of every job is wrong on line."""
    said = records(site.folder, TRAINED)
    said["node_w"] = said["most_w"] = 1.0
    train(site.registry, said)
    site.promote(1)
    power = SafePredictor(find_model(str(site.registry.path)), PowerPredictor(lambda job: 1000.0))
    assert power.predict(submission(0)).watts("maximum") == pytest.approx(2.0)
    site.end(LEAST_WINDOW)
    assert site.run().lines[0].startswith("ALARM: version 1 was rolled back: its error")
    assert power.predict(submission(0)).origin == "TDP"


def test_a_stated_violation_keeps_the_cap_of_a_replay_whatever_the_model_says(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = records(site.folder, TRAINED)
    said["node_w"] = said["most_w"] = 1.0
    train(site.registry, said)
    site.promote(1)

    def above_cap(params: str) -> int:
        policy = f"easy-power:model={site.registry.path},{params}"
        assert main(["replay", str(_log(tmp_path)), "--cap", "2500", "--policy", policy]) == 0
        found = re.search(r"above the cap (\d+) W s", capsys.readouterr().out)
        assert found
        return int(found[1])

    assert above_cap("violation=0.05") == 0 < above_cap("of=expected")


def test_a_champion_is_served_to_schedulers_with_its_hash_and_follows_promotions(site: Site) -> None:
    site.train()
    folder = str(site.registry.path)
    said = list[str]()
    power = SafePredictor(find_model(folder), PowerPredictor(lambda job: 1000.0), said.append)
    assert power.predict(submission(2)).origin == "TDP" and find_model(folder).origin is None
    site.promote(1)
    assert power.predict(submission(2)).typical_w == pytest.approx(600.0, rel=0.03)
    origin = find_model(folder).origin
    assert origin is not None and origin.file.endswith("watts/1/card.toml") and len(origin.sha256) == 64
    site.train(factor=2.0)
    site.promote(2)
    assert power.predict(submission(2)).typical_w == pytest.approx(1200.0, rel=0.03)
    pinned = choose(f"easy-power:model={folder}/1").model_origin
    assert pinned == origin
    (site.registry.path / "2" / "model.npz").write_bytes(b"cut off")
    site.registry.change(Change(2, 1, 2.0, "root", "again"))
    assert power.predict(submission(2)).origin == "TDP"
    assert len(said) == 1 and "model.npz: was changed or cut off" in said[0]
    with pytest.raises(WrongUseError, match="has no version of a model"):
        find_model(str(site.folder / "none"))


def test_names_and_users_of_the_live_partition_are_those_of_the_history(site: Site) -> None:
    site.train()
    site.promote(1)
    live = submission(1)
    live = type(live)("1001", f"run_5 tag /bin/run {time.time()}", 2, 2, 0, 0, 0, 7200, login="bob", title="run_5")
    power = SafePredictor(find_model(str(site.registry.path)), PowerPredictor(lambda job: 1000.0))
    assert power.predict(live).typical_w == power.predict(submission(1)).typical_w


# --- the command, with a partition that answers


@pytest.fixture
def agent(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[HistoryRow]:
    """Its history, which the test may change. One job waits."""
    rows = list[HistoryRow]()
    monkeypatch.setattr(model_service, "rows_since", lambda place, request: [
        row for row in rows if row.ended_s > request.since_s])  # fmt: skip
    monkeypatch.setattr(model_service, "_waiting", lambda place: [Waiting("77", submission(3))])
    return rows


NOW_S = time.time()


def test_from_training_to_promotion_by_command_with_metrics_and_reasons(
    site: Site, agent: list[HistoryRow], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_s = NOW_S - 900 * HOUR_S
    agent += map(history_row, ended(400, begin_s, factor=1.5))
    metrics = tmp_path / "models.prom"
    assert status(site, "train", "watts") == 0
    assert "watts/1: trained on 400 jobs" in capsys.readouterr().out
    assert status(site, "promote", "watts", "--force") == 0
    assert status(site, "train", "watts", "--from", str(_log(tmp_path))) == 0
    agent += map(history_row, ended(200, begin_s + 401 * HOUR_S, factor=1.5))
    agent.append(HistoryRow("x", "ada", "run", 1, 1.0, 2.0, NOW_S, 1.0, watts=math.nan))
    agent.append(HistoryRow("y", "ada", "run", 1, 1.0, 2.0, NOW_S + 9e9, 1.0, watts=100.0))
    capsys.readouterr()
    for new in (200, 0):
        assert status(site, "run", "--metrics", str(metrics)) == 0
        assert f"{new} jobs have ended since the last run" in capsys.readouterr().out
    text = metrics.read_text()
    assert metrics.stat().st_mode & 0o777 == 0o644
    assert 'clusterctl_model_version{model="watts"} 1.0' in text
    assert re.search(r'clusterctl_model_error\{model="watts"\} 0\.0[34]', text)
    assert re.search(r'clusterctl_model_predicted_watts\{model="watts"\} 1[12]\d\d\.', text)
    for name in set(re.findall(r"^(clusterctl_model_\w+)", text, re.MULTILINE)):
        assert f"# TYPE {name} gauge" in text
    assert status(site, "status", "--job", "77") == 0
    assert re.fullmatch(
        r"watts version 1: job 77 draws about 1[12]\d\d W, at most about \d+ W; from 100 jobs of the same user, name,"
        r" nodes and walltime\n",
        capsys.readouterr().out,
    )
    assert status(site, "status", "--job", "78") == 1
    capsys.readouterr()
    assert status(site, "status", "watts", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["champion"] == 1 and found["candidate"] == 2 and len(found["versions"]) == 2
    assert status(site, "forget", "ada") == 0
    assert capsys.readouterr().out.startswith("150 jobs of ada are nobody's now")


def test_a_training_as_a_job_is_the_same_command_without_the_cluster_agent(
    site: Site, agent: list[HistoryRow], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The head takes the jobs over; the node trains from them, and reaches no head."""
    agent += map(history_row, ended(60, NOW_S - 99 * HOUR_S))
    queued = list[Submit]()

    def accepted(place: Any, request: Submit) -> int:
        queued.append(request)
        return 41

    monkeypatch.setattr(training_job, "ask", accepted)
    assert status(site, "train", "watts", "--submit", "--time", "10min") == 0
    assert capsys.readouterr().out == "job 41\n" and site.registry.versions() == []
    assert status(site, "train", "log", "--submit", "--from", str(_log(tmp_path)), "--node-w", "300") == 0
    assert [(one.name, one.walltime_s, one.nodes) for one in queued] == [
        ("train-watts", 600, 1),
        ("train-log", 1800, 1),
    ]
    for one in queued:
        assert Path(one.command[0]).name == "clusterctl" and one.workdir == str(site.folder)
        subprocess.run(one.command, cwd=one.workdir, env={}, check=True, capture_output=True, timeout=PATIENCE_S)
    assert site.registry.version(1).card.jobs == 60
    assert Registry(site.folder, "log").version(1).card.jobs > 50
    assert status(site, "train", "watts", "--submit", "--time", "0s") == 2
    assert "--time 0s: give 1 second to" in capsys.readouterr().err


def _log(folder: Path) -> Path:
    path = folder / "log.csv"
    if not path.exists():
        source = Path(model_service.__file__).parents[2] / "samples" / "eurora-100.csv"
        path.write_bytes(source.read_bytes())
    return path


def test_what_is_wrong_is_one_line_and_nothing_is_lost(
    site: Site, agent: list[HistoryRow], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent += map(history_row, ended(60, NOW_S - 99 * HOUR_S))

    def refused(status_: int, said: str, *arguments: str) -> None:
        assert status(site, *arguments) == status_, arguments
        line = capsys.readouterr().err.strip()
        assert re.search(said, line) and "\n" not in line, line

    refused(2, "'Watts' is no name of a model", "train", "Watts")
    refused(2, "has no model 'watts'", "promote", "watts")
    assert status(site, "train", "watts") == 0
    capsys.readouterr()
    refused(2, r"has no model 'wats' \(nearest: watts\)", "run", "wats")
    (site.folder / "watts" / RUN).write_bytes(b'{"read": "yes"}')
    assert status(site, "run") == 0
    assert "run.json: is damaged: errors are counted again" in capsys.readouterr().err
    (site.folder / "watts" / RUN).write_bytes(b'{"format": 2}')
    refused(1, "run.json: was made by a newer nodectl", "run")
    (site.folder / "watts" / RUN).unlink()
    champion = site.folder / "watts" / "champion"
    assert status(site, "promote", "watts", "--force") == 0
    champion.write_text(champion.read_text().replace("version = 1", "version = 7"))
    capsys.readouterr()
    refused(1, "champion: was changed or damaged", "run")
    champion.unlink()

    def unreachable(place: Any, request: Any) -> Any:
        raise ClusterError("nobody answers at /run/x")

    monkeypatch.setattr(model_service, "rows_since", unreachable)
    refused(1, "nobody answers", "run")
    key = site.folder / "key"
    content = key.read_bytes()
    key.write_bytes(b"short")
    refused(1, "a key has 32 bytes, and this 5", "run")
    key.write_bytes(content)
    monkeypatch.setattr(model_service, "rows_since", lambda place, request: [])
    assert status(site, "run", "--metrics", str(site.folder / "none" / "x.prom")) == 1
    assert "x.prom: cannot be written: No such file" in capsys.readouterr().err


def test_a_job_that_is_reported_late_or_twice_is_one_record(site: Site, agent: list[HistoryRow]) -> None:
    rows = [history_row(one) for one in ended(60, NOW_S - 99 * HOUR_S)]
    agent += [*rows[:55], *rows[56:], *rows[:5]]
    assert status(site, "train", "watts") == 0
    agent.append(rows[55])  # within the hour before the newest
    assert status(site, "run") == 0
    ring = open_ring(site.folder, 1000)
    found = ring.last(1000)
    ring.close()
    assert len(found) in (59, 60) and len(np.unique(found["job"])) == len(found)


def test_what_killed_commands_left_goes_with_the_next_change_or_run(site: Site) -> None:
    site.train()
    for act in (site.run, lambda: site.promote(1), site.train):
        (site.registry.path / ".new-7").mkdir()
        (site.registry.path / ".run.json.x1").write_bytes(b"half")
        act()
        assert not list(site.registry.path.glob(".*")), act


def test_a_clock_that_was_ahead_leaves_no_champion_unjudged(
    site: Site, agent: list[HistoryRow], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    really, ahead_s = time.time, 9000 * HOUR_S
    agent += map(history_row, ended(400, NOW_S - 2000 * HOUR_S))
    late = [history_row(one) for one in ended(20, NOW_S + 8000 * HOUR_S)]
    agent += late
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: really() + ahead_s)
        assert status(site, "train", "watts") == status(site, "promote", "watts", "--force") == 0
    del agent[-len(late) :]
    agent += map(history_row, ended(LEAST_WINDOW, NOW_S - 1500 * HOUR_S, factor=2.0, seed=4))
    capsys.readouterr()
    assert status(site, "run") == 0
    assert "version 1 was trained on jobs that end later than now" in capsys.readouterr().err
    assert status(site, "train", "watts", "--keep", "5000") == 0
    said = capsys.readouterr()
    assert "20 jobs end later than now and are left out" in said.err and f"{400 + LEAST_WINDOW} jobs" in said.out
    assert site.registry.version(2).card.known_s < NOW_S


def test_a_lost_key_is_said_and_no_other_takes_its_place(
    site: Site, agent: list[HistoryRow], capsys: pytest.CaptureFixture[str]
) -> None:
    """With another key the same users would be strangers, and each kept job would come a second time."""
    agent += map(history_row, ended(60, NOW_S - 99 * HOUR_S))
    assert status(site, "train", "watts") == 0
    (site.folder / "key").unlink()
    for left in ("jobs.ring", "watts/1/card.toml"):
        assert status(site, "run") == 1 and status(site, "train", "watts") == 1
        first, second = capsys.readouterr().err.splitlines()
        assert first == second and "key: is missing" in first
        (site.folder / "jobs.ring").unlink(missing_ok=True)
        assert (site.folder / left).parent.is_dir() and not (site.folder / "key").exists()


def test_a_folder_that_is_no_model_keeps_no_model_from_its_run(
    site: Site, agent: list[HistoryRow], capsys: pytest.CaptureFixture[str]
) -> None:
    """A backup of the site's, or what a first training left that was killed."""
    site.train()
    (site.folder / "power" / ".new-7").mkdir(parents=True)
    assert status(site, "run") == status(site, "status") == 0
    assert "power" not in capsys.readouterr().out
    assert status(site, "run", "power") == 2
    assert "has no model 'power' (known: watts)" in capsys.readouterr().err


def test_a_model_that_is_named_twice_is_run_once(
    site: Site, agent: list[HistoryRow], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.train()
    assert status(site, "run", "watts", "watts", "--metrics", str(tmp_path / "x.prom")) == 0
    lines = (tmp_path / "x.prom").read_text().splitlines()
    assert len(lines) == len(set(lines))


# --- errors and intervals


def test_errors_are_the_same_too_high_and_too_low_and_at_most_one() -> None:
    assert errors(np.array([100.0, 50.0, 200.0, 1e9]), np.full(4, 100.0)).tolist() == pytest.approx([0, 0.5, 0.5, 1.0])


def test_the_interval_is_of_clusters_and_right_as_often_as_it_says(tmp_path: Path) -> None:
    """Jobs of one user and day share their difference, so jobs that counted as independent would be far too sure."""
    random, kept = np.random.default_rng(3), 0
    for _ in range(200):
        pairs = Pairs()
        for cluster in range(30):
            jobs = int(random.integers(1, 30))
            gain = jobs * (0.1 + random.normal(0, 0.05))
            pairs.clusters[f"{cluster}/0"] = [jobs, 0.5 * jobs, 0.5 * jobs - gain]
        found = pairs.gain()
        assert found is not None and found.clusters == 30
        kept += found.low <= 0.1 <= found.high
    assert 0.88 <= kept / 200 <= 0.99


def test_psi_is_nothing_for_the_same_shares_and_large_for_others() -> None:
    assert psi([0.5, 0.5, 0.0], [0.5, 0.5, 0.0]) == 0.0
    assert psi([0.5, 0.5], [0.6, 0.4]) == pytest.approx(0.0405, abs=1e-3)
    assert psi([1.0, 0.0], [0.0, 1.0]) > 10


def test_a_table_answers_from_the_closest_group_that_it_knows(site: Site) -> None:
    site.train()
    table: GroupTable = site.registry.version(1).table
    one = submission(1)
    others = [
        one, type(one)("bob", "run_1", 2, 2, 0, 0, 0, 60), type(one)("bob", "run_1", 4, 4, 0, 0, 0, 60),
        type(one)("bob", "new", 2, 2, 0, 0, 0, 60), type(one)("bob", "new", 4, 4, 0, 0, 0, 60),
        type(one)("eve", "new", 2, 2, 0, 0, 0, 7200), type(one)("eve", "new", 2, 2, 0, 0, 0, 60),
        type(one)("eve", "new", 4, 4, 0, 0, 0, 60),
    ]  # fmt: skip
    found = table.predict(site.words.submitted(others))
    assert found.level.tolist() == list(range(8))
    assert found.watts[:5, 0] == pytest.approx(200.0, rel=0.03)
    assert found.watts[5:, 1] == pytest.approx(250.0, rel=0.03)
    assert found.jobs.tolist() == [100] * 5 + [400] * 3


def test_a_user_sees_the_models_watts_before_a_submission_and_what_they_rest_on(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.train()
    site.promote(1)
    monkeypatch.setattr(predict, "past_jobs", lambda place: [])
    arguments = ["predict", "job", "--nodes", "2", "--time", "2h", "--name", "run_3", "--user", "bob"]
    assert main([*arguments, "--model", str(site.registry.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"draws about (39|40)\d W", lines[0])
    assert lines[-1].startswith(
        "by model watts version 1: 100 jobs of the same user, name, nodes and walltime; bob has"
    )
    assert main([*arguments, "--model", str(site.folder / "none" / "x")]) == 2
