"""The library as a program outside the product uses it: worlds of any kind, policies of one's own, results, errors."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster_agent import library
from cluster_agent.cli import main
from cluster_agent.library import (
    Cap,
    ClusterError,
    ColumnError,
    Composition,
    Jobs,
    PowerCap,
    Reaction,
    Situation,
    World,
    compare,
    load_machine,
    policy,
    replay,
)
from cluster_agent.replay import world_run
from cluster_agent.scheduler.cap_reactions import kills

SAMPLES = Path(__file__).parents[2] / "cluster_agent" / "samples"
LOG = str(SAMPLES / "generated-500.swf")
PROCESSORS = 128
"""So few that jobs wait."""


def columns_of(jobs: Jobs) -> dict[str, Any]:
    return {name: getattr(jobs, name) for name in ("number", "submit_s", "run_s", "request_s", "width", "user")}


@pytest.fixture(scope="module")
def log() -> World:
    return World(LOG, machine=PROCESSORS)


@pytest.fixture(scope="module")
def columns(log: World) -> dict[str, Any]:
    return columns_of(replay(log).jobs)


# --- everything that the command does


WORLDS: dict[str, tuple[World, str, list[str]]] = {
    "processors": (
        World(LOG, machine="curie:nodes=16", cap=4000.0, job_watts="generated"),
        "powercap:mode=dvfs",
        [LOG, "--machine", "curie:nodes=16", "--cap", "4000", "--job-watts", "generated"],
    ),
    "nodes": (
        World(SAMPLES / "eurora-100.csv", cap=SAMPLES / "falling-cap.csv"),
        "easy-capped",
        [str(SAMPLES / "eurora-100.csv"), "--cap", str(SAMPLES / "falling-cap.csv")],
    ),
    "configurations": (
        World(SAMPLES / "cab-30.swf", machine="cab64", cap=6500),
        "rmap:th=0.2",
        [str(SAMPLES / "cab-30.swf"), "--machine", "cab64", "--cap", "6500"],
    ),
    "closed loop": (
        World(LOG, machine=PROCESSORS, closed_loop="think=60", seed=3),
        "easy",
        [LOG, "--machine", str(PROCESSORS), "--closed-loop", "think=60", "--seed", "3"],
    ),
}


@pytest.mark.parametrize("kind", WORLDS)
def test_a_program_gets_the_files_of_the_command(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world, chosen, arguments = WORLDS[kind]
    assert main(["replay", *arguments, "--policy", chosen, "--out", str(tmp_path / "command")]) == 0
    said = list[str]()
    result = replay(world, chosen, say=said.append)
    assert said == capsys.readouterr().err.splitlines()
    assert result.write(str(tmp_path / "program")) == []
    for name in ("jobs.csv", "metrics.json"):
        assert (tmp_path / "program" / name).read_bytes() == (tmp_path / "command" / name).read_bytes()


def test_a_world_starts_from_the_jobs_of_a_state_that_a_result_has_written(log: World, tmp_path: Path) -> None:
    first = replay(log, at_s=[40_000])
    first.write_state(str(tmp_path / "state.json"), 40_000)
    second = replay(World(LOG, machine=PROCESSORS, state=tmp_path / "state.json"))
    later = dict(zip(first.jobs.number.tolist(), first.start_s.tolist(), strict=True))
    assert 0 < len(second.jobs) < len(second.whole.jobs) == len(first.jobs)
    assert second.start_s.tolist() == [later[one] for one in second.jobs.number.tolist()]
    with pytest.raises(ClusterError, match=r"--state-at 50000: give it to replay\(..., at_s=\[50000\]\), too"):
        first.write_state(str(tmp_path / "state.json"), 50_000)


def test_a_log_of_what_is_in_no_file_is_refused(columns: dict[str, Any], tmp_path: Path) -> None:
    replay(World(LOG)).write_log(str(tmp_path / "events"))
    assert main(["check-log", str(tmp_path / "events")]) == 0
    with pytest.raises(ClusterError, match="it names files that check-log reads again"):
        replay(World(columns, machine=PROCESSORS)).write_log(str(tmp_path / "events"))


# --- jobs from columns


def frame(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pandas", reason="pandas is missing: install pandas").DataFrame(columns)


def table(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pyarrow", reason="pyarrow is missing: install pyarrow").table(columns)


def rows(columns: dict[str, Any]) -> Iterator[Mapping[str, int]]:
    for values in zip(*(column.tolist() for column in columns.values()), strict=True):
        yield dict(zip(columns, values, strict=True))


FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "arrays": dict,
    "a data frame": frame,
    "a table": table,
    "rows of a generator": rows,
    "durations": lambda columns: columns | {"run_s": columns["run_s"].astype("m8[s]")},
    "texts": lambda columns: columns | {"user": np.char.add("u", np.char.zfill(columns["user"].astype(str), 4))},
}


@pytest.mark.parametrize("form", FORMS)
def test_columns_are_replayed_like_the_log_that_they_are_of(form: str, log: World, columns: dict[str, Any]) -> None:
    world = World(FORMS[form](columns), machine=PROCESSORS)
    for chosen in ("easy", "easy-sjbf:estimate=mean2,correct=incremental"):
        np.testing.assert_array_equal(replay(world, chosen).start_s, replay(log, chosen).start_s)


def test_jobs_of_a_result_are_the_jobs_of_another_world(log: World) -> None:
    for world, chosen in ((log, "easy"), (World(SAMPLES / "eurora-100.csv"), "prb")):
        first = replay(world, chosen)
        again = World(first.jobs, machine=PROCESSORS if world is log else "eurora")
        np.testing.assert_array_equal(replay(again, chosen).start_s, first.start_s)


def test_what_cannot_have_run_is_dropped_and_counted(columns: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    wide = columns | {"width": np.where(columns["number"] == 7, 1000, columns["width"])}
    result = replay(World(wide, machine=PROCESSORS))
    is_wide = wide["width"] > PROCESSORS
    (finding,) = (one for one in result.findings if one.what == "jobs wider than the machine")
    assert (finding.count, finding.first_line) == (int(is_wide.sum()), int(is_wide.argmax()))
    assert result.metrics["dropped"] == finding.count
    assert [one.getMessage() for one in caplog.records] == list(result.remarks)
    assert {(one.name, one.levelno) for one in caplog.records} == {("cluster_agent.library", logging.WARNING)}
    with pytest.raises(ClusterError, match=r"columns:\d+: jobs wider than the machine \(first of"):
        replay(World(wide, machine=PROCESSORS, strict=True))


NAN = np.array([10.0, np.nan])
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a NaN": ({"run_s": NAN}, "column run_s, row 1: nan is no number: give -1 where it is unknown"),
    "a text": ({"width": ["4", "8"]}, "column width, row 0: '4' is str: give whole numbers"),
    "None": ({"request_s": [10, None]}, "column request_s, row 1: None is NoneType: give whole numbers"),
    "a truth": ({"width": [True, False]}, "column width, row 0: True is bool: give whole numbers"),
    "too few": ({"run_s": [10]}, "column run_s: it has 1 values, and submit_s has 2: give as many"),
    "too deep": ({"run_s": [[1], [2]]}, "column run_s: it has 2 dimensions: give one value for each job"),
    "ragged": (
        {"run_s": [[1], [2, 3]]},
        "column run_s: its values make no array: give one number or text for each job",
    ),
    "another unit": (
        {"run_ms": [10, 10]},
        "column run_ms: there is no such column (nearest: run_s); times are whole seconds (_s)",
    ),
    "nanoseconds": (
        {"submit_s": [10**18, 10**18]},
        f"column submit_s, row 0: {10**18} s: are these other units? Give whole seconds",
    ),
    "a moment for a duration": (
        {"run_s": np.array(["2026-01-01", "2026-01-02"], "M8[s]")},
        "column run_s: it is datetime64[s]: give seconds",
    ),
    "no time": ({"submit_s": np.array(["2026-01-01", "NaT"], "M8[s]")}, "column submit_s, row 1: NaT is no time"),
    "watts below 0": ({"watts": [100.0, -1.0]}, "column watts, row 1: -1 W: give watts above 0, or NaN where unknown"),
    "no column": ({"submit_s": 0}, "column submit_s: it has 0 dimensions: give one value for each job"),
    "a text among numbers": ({"run_s": [1, "x"]}, "column run_s, row 1: 'x' is str: give whole numbers"),
    "a truth among numbers": ({"run_s": [1, True]}, "column run_s, row 1: True is bool: give whole numbers"),
    "a masked value": ({"run_s": np.ma.array([1, 2], mask=[False, True])}, "column run_s, row 1: it is masked"),
    "a number beyond 64 bits": ({"run_s": [1, 10**30]}, "column run_s, row 1: it is too large for a whole number"),
    "months": (
        {"run_s": np.array([1, 2], "m8[M]")},
        "column run_s: it is timedelta64[M]: give times that are a number",
    ),
    "no unit": ({"run_s": np.array([1, 2], "m8")}, "column run_s: it is timedelta64: give times that are a number"),
    "a time zone": (
        {"submit_s": [datetime(2026, 1, 1, tzinfo=UTC)] * 2},
        "column submit_s, row 0: datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc) is datetime: give"
        " whole seconds or datetime64",
    ),
    "watts of two jobs": (
        {"watts": [1.0, 2.0], "number": [5, 5]},
        "column number, row 1: 5 is there twice: watts are of a job by its number",
    ),
    "watts without an end": ({"watts": [np.inf, 1.0]}, "column watts, row 0: inf W: give watts above 0"),
    "users of two kinds": ({"user": np.array(["a", 3], object)}, "column user, row 1: 3 is int: give numbers or texts"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_column_is_named_with_its_row(case: str) -> None:
    given, sentence = WRONG[case]
    two = {"submit_s": np.array([0, 5]), "run_s": np.array([10, 10]), "width": np.array([1, 1])}
    with pytest.raises(ColumnError) as error:
        replay(World(two | given, machine="curie"), "fcfs")
    assert str(error.value).startswith(sentence), str(error.value)


WRONG_ON_NODES: dict[str, tuple[dict[str, Any], str]] = {
    "a name that is none": ({"name": ["a", None]}, "column name, row 1: None is NoneType: give numbers or texts"),
    "a user that is NaN": ({"user": NAN}, "column user, row 1: nan is no number"),
    "watts below 0": ({"watts": [-1.0, 1.0]}, "column watts, row 0: -1 W: give watts above 0, or NaN where unknown"),
    "two names": ({"name": ["a", "b"], "number": [1, 2]}, "column name: there is a column number, too"),
}


@pytest.mark.parametrize("case", WRONG_ON_NODES)
def test_a_wrong_column_of_nodes_is_named_with_its_row(case: str) -> None:
    given, sentence = WRONG_ON_NODES[case]
    two = {"submit_s": [0, 5], "run_s": [10, 10], "units": [1, 1], "cores": [1, 1]}
    with pytest.raises(ColumnError) as error:
        replay(World(two | given, machine="eurora"))
    assert str(error.value).startswith(sentence), str(error.value)


def test_times_of_jobs_on_nodes_may_be_unknown() -> None:
    unknown = {"request_s": [-1, 20], "wait_s": [-1, -1]}
    result = replay(
        World({"submit_s": [0, 5], "run_s": [10, 10], "units": [1, 1], "cores": [1, 1]} | unknown, "eurora")
    )
    assert result.start_s.tolist() == [0, 5]
    assert [(one.what, one.done == "dropped", one.count) for one in result.findings] == [
        ("jobs without a requested time", False, 1)
    ]


def test_a_table_with_two_columns_of_one_name_is_refused() -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.Table.from_arrays([arrow.array([1])] * 4, names=["submit_s", "run_s", "width", "run_s"])
    with pytest.raises(ColumnError, match="column run_s: there are two columns of that name"):
        replay(World(table, machine=4))


@pytest.mark.parametrize(
    ("jobs", "sentence"),
    [
        ({}, "column submit_s: it is missing; there are none"),
        ({"submit_s": [], "run_s": [], "width": []}, "column submit_s: it has no values: give at least one job"),
        ({"submit_s": [0], "run_s": [1]}, "column width: it is missing; there are submit_s, run_s"),
        ([{"submit_s": 0}, {"run_s": 0}], "column run_s, row 1: it is only in some of the rows"),
        ([3], "jobs, row 0: it is int: give columns by name, or rows by name"),
        (3, "jobs cannot be int: give a file, columns by name, or rows by name"),
    ],
)
def test_what_is_no_table_of_jobs_is_refused(jobs: Any, sentence: str) -> None:
    with pytest.raises(ClusterError) as error:
        replay(World(jobs, machine=4))
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"machine": 1.5}, "--machine 1.5: give a number of processors, a name, a file or a Machine"),
        ({"machine": 0}, "--machine 0: give a number of processors, 1 to 2147483647"),
        ({"cap": float("nan")}, "--cap nan: give watts above 0, or a file"),
        ({"cap": 100}, "--cap 100: watts are needed; give a machine that has them"),
        ({"cap": [100]}, r"--cap [100]: give watts, a file or a PowerCap"),
        ({"closed_loop": 5}, "--closed-loop 5: give a text"),
        ({"state": 5}, "--state 5: give a text"),
        ({"job_watts": [5.0]}, "--job-watts [5.0]: give a file, `generated`, or watts by number"),
        ({"machine": "curie", "job_watts": {1: "x"}}, "job_watts: job 1 has 'x' W: give watts above 0"),
        ({"seed": -1}, "--seed -1: give a whole number from 0"),
        ({"jobs": None}, "give a TRACE, or --state FILE"),
        ({"instance": "x"}, "--instance x: only for traces with nodes"),
        (
            {"jobs": {"submit_s": [0], "run_s": [1], "width": [1], "request_s": [1], "watts": [5.0]}, "machine": 4},
            "watts of jobs: needs a machine that has watts",
        ),
        ({"machine": "curie", "job_watts": {1: float("nan")}}, "job_watts: job 1 has nan W"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_with_the_sentence_of_the_command(
    given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ClusterError) as error:
        replay(World(**{"jobs": LOG} | given))
    assert str(error.value).startswith(sentence)


def test_what_is_no_world_or_no_result_is_refused_and_numbers_may_be_of_numpy(columns: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match=r"replay: give a World, such as World\(jobs, machine=512\), not str"):
        replay(LOG)  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match="compare: 'mine' is str: give what replay returns"):
        compare({"mine": "easy"})  # type: ignore[dict-item]
    found = World(columns, machine=np.int64(PROCESSORS), cap=np.float32(5), seed=np.int32(3))  # type: ignore[arg-type]
    assert (found.machine, found.cap, found.seed) == (PROCESSORS, 5.0, 3)


def test_machines_and_caps_may_be_objects(columns: dict[str, Any]) -> None:
    machine, cap = load_machine("curie:nodes=16"), PowerCap.of([Cap(0, 50_000, 4000.0)])
    of_objects = replay(World(columns, machine=machine, cap=cap), "powercap:mode=dvfs")
    assert (of_objects.power().watts[of_objects.power().time_s < 50_000] <= 4000.0).all()
    watts = dict.fromkeys(columns["number"].tolist(), 300.0)
    by_number = replay(World(columns, machine=machine, job_watts=watts)).metrics["energy_j"]
    as_column = World(columns | {"watts": np.full(len(columns["number"]), 300.0)}, machine=machine)
    assert replay(as_column).metrics["energy_j"] == by_number != of_objects.metrics["energy_j"]


# --- policies of one's own


def smallest_area(queue: library.Queue, now_s: int) -> Any:
    return queue.width * queue.estimate_s * 1.0


class SmallestArea:
    """An object whose methods and attributes are phases."""

    backfill = "conservative"
    estimate = "mean2"

    def order(self, queue: library.Queue, now_s: int) -> Any:
        return smallest_area(queue, now_s)


def test_a_function_is_an_order_with_easy_behind_its_head(log: World) -> None:
    ours, shipped = replay(log, smallest_area), replay(log, "score:lowest=saf")
    np.testing.assert_array_equal(ours.start_s, shipped.start_s)
    assert (ours.start_s != replay(log).start_s).any()
    formula = policy(score=library.score("estimate * width"))
    np.testing.assert_array_equal(replay(log, formula).start_s, shipped.start_s)


def test_an_object_and_replaced_phases_and_a_composition_are_the_same_policy(log: World) -> None:
    phases = {"order": smallest_area, "backfill": "conservative", "estimate": "mean2"}
    made = [policy(SmallestArea()), policy("wfp3", **phases), policy(Composition(**phases)), policy(**phases)]
    starts = [replay(log, one).start_s.tolist() for one in made]
    assert starts[1:] == starts[:-1]
    assert [one.text for one in made] == ["SmallestArea", "wfp3+smallest_area", "composition", "easy+smallest_area"]


def test_a_reaction_to_caps_may_be_a_function() -> None:
    calls = []

    def react(situation: Situation) -> Reaction:
        calls.append(situation.now_s)
        return kills("newest-start")(situation)

    world = World(LOG, machine="curie:nodes=16", cap=PowerCap.of([Cap(20_000, 50_000, 3000.0)]))
    ours, shipped = replay(world, policy("fcfs-killer", react=react)), replay(world, "fcfs-killer")
    assert calls and shipped.metrics["kills"] > 0
    np.testing.assert_array_equal(ours.start_s, shipped.start_s)


@pytest.mark.parametrize(
    ("base", "phases", "sentence"),
    [
        ("eazy", {}, "no policy is called 'eazy' (nearest: easy)"),
        ("easy", {"ordr": smallest_area}, "--policy easy: there is no phase 'ordr' (nearest: order)"),
        ("easy", {"backfill": "all"}, "--policy easy: no backfill is called 'all'"),
        ("easy", {"idle_off_s": 0}, "--policy easy: idle_off_s=0: give 1 second or more"),
        (3, {}, "--policy int: give a name, a function order(queue, now_s), a Composition, or an object that has"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(base: Any, phases: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ClusterError) as error:
        policy(base, **phases)
    assert str(error.value).startswith(sentence)


def test_what_an_order_raises_comes_through_as_it_is(log: World) -> None:
    def broken(queue: library.Queue, now_s: int) -> Any:
        return queue.width[10**6]

    with pytest.raises(IndexError):
        replay(log, broken)
    with pytest.raises(ClusterError, match="the policy's order must return each of the positions"):
        replay(log, lambda queue, now_s: queue.width)


def test_a_manifest_tells_two_policies_of_one_name_apart(log: World, tmp_path: Path) -> None:
    origins = []
    for at, one in enumerate((smallest_area, lambda queue, now_s: queue.width * 1.0)):
        replay(log, policy(one, name="mine")).write(str(tmp_path / str(at)))
        origins.append((tmp_path / str(at) / "manifest.json").read_text().partition('"origin"')[2])
    assert '"file": "(mine)"' in origins[0] and origins[0] != origins[1]


# --- results


def test_frames_tables_and_arrays_share_their_memory_and_have_the_columns_of_the_file(
    log: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: install pyarrow")
    pytest.importorskip("pandas", reason="pandas is missing: install pandas")
    result = replay(log)
    arrow, arrays, data_frame = result.arrow(), result.columns(), result.pandas()
    result.write(str(tmp_path / "out"))
    assert parquet.read_table(tmp_path / "out" / "jobs.parquet").to_pydict() == arrow.to_pydict()
    assert list(arrays) == list(data_frame.columns) == arrow.column_names
    for name in ("starting_time", "waiting_time", "corrections"):
        of_table = arrow.column(name).chunk(0).to_numpy(zero_copy_only=True)
        assert of_table.base is not None and of_table.dtype == arrays[name].dtype
    monkeypatch.setattr(library.Result, "columns", lambda self: arrays)
    assert np.shares_memory(result.pandas()["waiting_time"].to_numpy(), arrays["waiting_time"])
    np.testing.assert_array_equal(data_frame["waiting_time"], result.wait_s)


def test_results_are_compared_job_by_job_with_the_first(log: World) -> None:
    results = {"easy": replay(log), "mine": replay(log, smallest_area), "again": replay(log)}
    compared = compare(results)
    assert compared["policy"] == ["easy", "mine", "again"]
    assert compared["bsld_difference"][0] == compared["bsld_difference"][2] == 0.0
    difference = results["mine"].metrics["AVEbsld"] - results["easy"].metrics["AVEbsld"]
    assert compared["bsld_difference"][1] == pytest.approx(difference)
    assert (compared["low"][1], compared["high"][1]) == (None, None), "half a day of one log"
    assert compared["interval"][1].startswith("none, from 1 log, 1 week, 1 seed")
    assert compare(results, baseline="mine")["bsld_difference"][0] == pytest.approx(-difference)
    with pytest.raises(ClusterError, match="no result is called 'min' "):
        compare(results, baseline="min")
    with pytest.raises(ClusterError, match="each with a name of its own"):
        compare([results["easy"], results["again"]])


# --- progress, and how a replay is ended


def test_progress_grows_to_all_jobs(log: World) -> None:
    seen = list[tuple[int, int]]()
    replay(log, progress=lambda ended, jobs: seen.append((ended, jobs)))
    assert seen == sorted(seen) and len(seen) > 10
    assert seen[-1] == (len(replay(log).jobs),) * 2


def test_ctrl_c_in_mid_replay_leaves_and_the_next_replay_is_whole(log: World) -> None:
    seen = list[int]()

    def interrupted(ended: int, jobs: int) -> None:
        seen.append(ended)
        if ended > jobs // 2:
            signal.raise_signal(signal.SIGINT)

    whole = replay(log).start_s
    with pytest.raises(KeyboardInterrupt):
        replay(log, progress=interrupted)
    assert seen[-1] < len(whole)
    np.testing.assert_array_equal(replay(log).start_s, whole)


class SlowReplay:
    """Each job that ends takes so many seconds of a clock that is given."""

    def __init__(self, job_s: float, jobs: int) -> None:
        self.job_s, self.ended, self.now_s, self.most = job_s, 0, 0.0, 0
        self.jobs = range(jobs)

    def pause_at(self, at_s: int) -> None:
        """Never."""

    def run(self, until_ended: int) -> bool:
        until_ended = min(until_ended, len(self.jobs))
        self.most = max(self.most, until_ended - self.ended)
        self.now_s += self.job_s * (until_ended - self.ended)
        self.ended = until_ended
        return self.ended < len(self.jobs)


@pytest.mark.parametrize("job_s", [1e-7, 1e-3, 0.02, 5.0])
def test_no_slice_of_a_slow_replay_lasts_long_and_a_fast_one_has_few(
    job_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, calls = SlowReplay(job_s, 100_000), list[int]()
    monkeypatch.setattr(world_run, "perf_counter", lambda: slow.now_s)
    world_run.run_to_end(slow, calls.append)  # type: ignore[arg-type]
    assert slow.most == 1 or slow.most * job_s <= 2 * world_run.SLICE_S
    assert slow.ended == 100_000 and (job_s > 1e-4 or len(calls) < 1.2 * world_run.SLICES)


# --- as a package


def test_every_name_is_there_and_an_import_brings_neither_frames_nor_the_command() -> None:
    assert sorted(library._MODULES) == library.__all__ == dir(library)
    assert all(getattr(library, name) is not None for name in library.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'rplay'"):
        library.rplay  # noqa: B018
    program = (
        "import gc, sys; seen = []; gc.callbacks.append(lambda phase, _: seen.append(phase))\n"
        f"from cluster_agent.library import *; replay(World({LOG!r}))\n"
        "print(len(seen) // 2, gc.isenabled(), gc.get_freeze_count(), *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    collections, is_on, exempt, *modules = done.stdout.split()
    assert (int(collections) < 10, is_on, exempt) == (True, "True", "0")  # 46 if imports are looked through
    loaded = {name.partition(".")[0] for name in modules}
    assert "cluster_agent" in loaded
    assert not loaded & {"click", "pandas", "pyarrow", "nodectl", "pmu", "twin", "numpy.ma", "logging"}


OUTSIDE = """
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from cluster_agent.library import Composition, Policy, Queue, Result, World, compare, policy, replay


def mine(queue: Queue, now_s: int) -> npt.NDArray[np.float64]:
    return queue.width / queue.estimate_s


def measured(jobs: Mapping[str, npt.NDArray[np.int64]]) -> float:
    world = World(jobs, machine=64)
    chosen: Policy = policy(mine, backfill="conservative")
    results: dict[str, Result] = {"mine": replay(world, chosen), "other": replay(world, Composition(order=mine))}
    compare(results)
    mean: float = results["mine"].metrics["AVEbsld"]
    return mean + float(results["mine"].wait_s.mean())
"""


def test_an_outside_file_passes_the_strict_checker(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(OUTSIDE)
    root = SAMPLES.parents[1]
    options = ["--strict", "--config-file", str(root / "pyproject.toml"), "--follow-imports", "silent"]
    command = [sys.executable, "-m", "mypy", *options, str(tmp_path / "outside.py")]
    done = subprocess.run(command, cwd=root, env=os.environ | {"MYPYPATH": "."}, capture_output=True, text=True)
    assert done.stdout.startswith("Success"), done.stdout + done.stderr
    packages = [path.parent for path in root.glob("*/__init__.py") if path.parent.name not in ("tests", "benchmarks")]
    assert {path.name for path in packages if not (path / "py.typed").exists()} <= {"docs", "hil_tests", "build"}
