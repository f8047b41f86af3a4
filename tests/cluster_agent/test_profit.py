"""``clusterctl profit``: the model by hand, schedules with releases, plans against rules, and the profile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.cap_steps import read_caps
from cluster_agent.cli import main
from cluster_agent.cluster import Machine, NodeGroup, Topology
from cluster_agent.prices.cooling import PueTable, Temperatures, our_table
from cluster_agent.prices.price_table import Spell
from cluster_agent.prices.profit_days import (
    RULES,
    Carried,
    Work,
    busy_spells,
    by_rule,
    hours,
    planned,
    work_of,
    worth,
)
from cluster_agent.prices.profit_model import Profit, Site, Tariff, profit, window
from cluster_agent.prices.profit_search import Day, Schedules
from cluster_agent.scheduler.job_columns import NEVER_S, Jobs
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed

SAMPLES = Path(__file__).parents[2] / "cluster_agent" / "samples"
PUE = PueTable(np.array([0.0, 20.0]), np.array([0.0, 1000.0]), np.array([[1.0, 1.5], [2.0, 2.0]]))
SITE = Site(Tariff(0.1, 0.2), PUE, Temperatures(np.array([0, 3600]), np.array([5.0, 30.0])))


SMALL = Machine(
    name="small",
    topology=Topology(),
    degradation={},
    groups=(NodeGroup(4, 8, 10.0, 100.0, (2000,), (200.0,), boot_j=5000.0, switch_off_j=1000.0),),
)
"""Four nodes of eight cores."""


def jobs_of(rows: list[tuple[int, int, int, int]]) -> Jobs:
    """(submit, run, request, width)."""
    submit, run, request, width = np.array(rows, np.int64).T
    number = np.arange(len(rows))
    return Jobs(number, submit, run, request, width.astype(np.int32), np.zeros(len(rows), np.int32))


def test_the_profit_of_two_jobs_is_that_worked_out_by_hand() -> None:
    """The first runs from before the window into its second hour; the second beyond its end."""
    of = window(SITE, 0, 7200)
    starts = (np.array([-1800, 3600]), np.array([7200, 7200]), np.array([10, 20]), np.array([1000.0, 2000.0]))
    found = profit(of, *starts)
    hour_kwh = (1.0, 0.5 + 2.0)  # at 5 and 30 degrees, a mean of 1000 and 2500 W: PUE 1.5 and 2
    assert found.earned == pytest.approx((10 * 1.5 + 20 * 1.0) * 0.1)
    assert found.power == pytest.approx(sum(hour_kwh) * 0.2)
    assert found.cooling == pytest.approx((1.0 * 0.5 + 2.5 * 1.0) * 0.2)
    assert found.total == pytest.approx(found.earned - found.power - found.cooling)


def test_a_price_that_changes_within_an_hour_counts_from_then_on_and_a_missing_one_is_an_error() -> None:
    spells = (Spell(0, 1800, 1.0), Spell(1800, 3600, -2.0))
    changing = Site(Tariff(0.1, 9.0, spells), PUE, SITE.temperatures)
    job = (np.array([0]), np.array([3600]), np.array([1]), np.array([1000.0]))
    assert profit(window(changing, 0, 3600), *job).power == pytest.approx(0.5 * 1.0 - 0.5 * 2.0)
    with pytest.raises(Exception, match="no price of power at second 3600: complete --prices, or choose other days"):
        window(changing, 0, 7200)


@pytest.mark.parametrize(
    ("plant", "celsius", "share", "printed"),
    [
        ("air", 25, 0.95, 1.43497),
        ("air", 5, 0.95, 1.11726),
        ("hybrid", 25, 0.8482, 1.08727),
        ("hybrid", 5, 0.8482, 1.00302),
    ],
)
def test_our_table_has_the_printed_slope_points(plant: str, celsius: float, share: float, printed: float) -> None:
    table = our_table(plant, 106_656.0)  # type: ignore[arg-type]
    slope_w = share * 106_656
    assert table.at(celsius, slope_w) == pytest.approx(printed, abs=6e-4)
    steps = [table.at(celsius, watts) * watts - watts for watts in (slope_w - 2000, slope_w - 1000)]
    more = [table.at(celsius, watts) * watts - watts for watts in (slope_w + 1000, slope_w + 2000)]
    assert more[1] - more[0] > 1.2 * (steps[1] - steps[0]), "chillers start there"


JOB = st.tuples(st.integers(0, 20), st.integers(1, 15), st.just(99), st.integers(1, 32))


def by_hand(work: Work, order: list[int], is_strict: bool, until_s: int) -> dict[int, int]:
    """A list schedule on equal nodes of 8 cores, second by second; nodes in order, the fullest first."""
    free, ends, starts = [8] * 4, [], {}
    for now_s in range(until_s):
        for _, node, cores in [one for one in ends if one[0] == now_s]:
            free[node] += cores
        for job in order:
            if job in starts or work.jobs.submit_s[job] > now_s:
                continue
            need, units = int(work.need[job, 0]), int(work.units[job])
            fitting = sorted((free[node], node) for node in range(4) if free[node] >= need)[:units]
            if len(fitting) == units:
                starts[job] = now_s
                for _, node in fitting:
                    free[node] -= need
                    ends.append((now_s + int(work.jobs.run_s[job]), node, need))
            elif is_strict:
                break
    return starts


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(JOB, min_size=1, max_size=12), strict=st.booleans())
def test_rules_start_jobs_as_they_are_released_in_their_order(
    rows: list[tuple[int, int, int, int]], strict: bool
) -> None:
    work = small_work(sorted(rows))
    found = by_rule(work, 1, "wt", strict, "true")
    order = np.lexsort((np.arange(len(work)), work.jobs.run_s)).tolist()
    starts = by_hand(work, order, strict, 250)
    assert found.start_s.tolist() == [starts[job] for job in range(len(work))]


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(JOB, min_size=1, max_size=12), late=st.integers(0, 40))
def test_a_serial_schedule_keeps_releases_and_room_and_starts_no_job_later_than_needed(
    rows: list[tuple[int, int, int, int]], late: int
) -> None:
    work = small_work(sorted(rows))
    schedules = Schedules(day_of(work))
    schedules.release_s[-1] += late
    order = list(range(len(work)))[::-1]
    start_s, busy = schedules.start_s(order), np.zeros((4, 300), np.int64)
    for job in order:
        placed = schedules.plan(order).placed(job)
        need, run_s = int(work.need[job, 0]), int(work.jobs.run_s[job])
        for at_s in range(int(schedules.release_s[job]), int(start_s[job])):
            room = (8 - busy[:, at_s : at_s + run_s].max(axis=1)) // need
            assert room.sum() < work.units[job], "an earlier start had room"
        for node, count in zip(placed.node.tolist(), placed.count.tolist(), strict=True):
            busy[node, start_s[job] : start_s[job] + run_s] += count * need
        assert start_s[job] >= schedules.release_s[job] and busy.max() <= 8


def small_work(rows: list[tuple[int, int, int, int]]) -> Work:
    return work_of(jobs_of(rows), SMALL)


def day_of(work: Work) -> Day:
    from cluster_agent.prices.profit_days import _day

    return _day(work, "true", np.arange(len(work)), np.full(len(work), NEVER_S), {}, window(SITE, 0, 86_400), "serial")


def crowd() -> Work:
    """Two days that four nodes cannot serve."""
    draw = np.random.default_rng(7)
    submit = np.sort(draw.integers(0, 2 * 86_400, 120))
    run = draw.integers(300, 7000, 120)
    width = draw.choice([1, 4, 8, 12, 16, 24, 32], 120)
    rows = list(zip(submit.tolist(), run.tolist(), (2 * run).tolist(), width.tolist(), strict=True))
    return work_of(jobs_of(rows), SMALL)


def test_plans_earn_more_than_the_rules_whose_orders_they_try_and_searches_more_than_multi() -> None:
    work, machine = crowd(), SMALL

    def total(carried: Carried, days: int = 1) -> float:
        return worth(work, SITE, machine, days, carried).jobs.total

    rules = [total(by_rule(work, 1, rule, strict, "true")) for rule, strict in RULES if not strict]
    assert total(planned(work, SITE, 1, "multi", "true", 0, "list").carried) >= max(rules) - 1e-9
    found = {name: planned(work, SITE, 1, name, "true", 60) for name in ("multi", "delay", "relaxation")}
    assert found["delay"].tried == found["relaxation"].tried == found["multi"].tried + 60 == 80
    assert total(found["delay"].carried) >= total(found["multi"].carried)
    assert total(found["relaxation"].carried) > total(found["multi"].carried)


def test_delay_waits_for_cheap_power_until_the_day_would_end() -> None:
    """Two jobs of an hour, alike; power costs nothing from 6:00 to 7:00, and the rest of the day a lot."""
    work = small_work([(0, 3600, 3600, 8), (0, 3600, 3600, 8)])
    spells = (Spell(0, 6 * 3600, 5.0), Spell(6 * 3600, 7 * 3600, 0.0), Spell(7 * 3600, 86_400, 5.0))
    site = Site(Tariff(0.1, 0.0, spells), PUE, SITE.temperatures)
    assert planned(work, site, 1, "multi", "true", 0).carried.start_s.tolist() == [0, 0]
    assert sorted(planned(work, site, 1, "delay", "true", 10**6).carried.start_s.tolist()) == [21_600, 21_600]


@pytest.mark.parametrize("knowledge", ["true", "requested", "predicted"])
def test_what_is_carried_out_fits_the_nodes_for_true_run_times_over_midnight(knowledge: str) -> None:
    work = crowd()
    carried = planned(work, SITE, 2, "multi", knowledge, 0).carried  # type: ignore[arg-type]
    started = np.flatnonzero(carried.start_s < NEVER_S)
    assert len(started) > 40 and (carried.start_s[started] >= work.jobs.submit_s[started]).all()
    for at_s in carried.start_s[started].tolist():
        used = np.zeros(4, np.int64)
        for job in started[(carried.start_s[started] <= at_s)].tolist():
            if carried.start_s[job] + work.jobs.run_s[job] > at_s:
                np.add.at(used, carried.placed[job].node, carried.placed[job].count * work.need[job, 0])
        assert used.max() <= 8
    crossing = (carried.start_s < 86_400) & (carried.start_s + work.jobs.run_s > 86_400)
    assert crossing.any()


def test_idle_nodes_and_boots_are_counted_as_worked_out_by_hand() -> None:
    """Of four nodes one has a job from 1 h to 2 h, and again from 3 h to the end; two jobs of it overlap."""
    work, machine = small_work([(0, 3600, 3600, 4), (0, 1800, 1800, 4), (0, 75_600, 75_600, 8)]), SMALL
    starts = {0: 3600, 1: 4000, 2: 10_800}
    carried = Carried(np.array(list(starts.values())), {job: Placed(np.array([1]), np.array([1])) for job in starts})
    assert busy_spells(work, carried).tolist() == [[1, 3600, 7200], [1, 10_800, 86_400]]
    found = worth(work, SITE, machine, 1, carried)
    idle_j = 5 * 300 * 100 + 3 * 86_100 * 10 + 2 * 3300 * 10 + 2 * (5000 + 1000)
    assert found.boots == 2 and found.without_jobs.power == pytest.approx(idle_j / 3.6e6 * 0.2)
    assert found.without_jobs.cooling > 0 and found.with_idle < found.jobs.total


def test_the_profile_of_a_day_is_never_below_what_its_plan_draws() -> None:
    work, machine = crowd(), SMALL
    carried = planned(work, SITE, 1, "multi", "true", 0).carried
    found = list(hours(work, machine, carried, 0))
    assert [from_s for from_s, _, _ in found] == list(range(0, 86_400, 3600))
    starts = carried.start_s < NEVER_S
    start_s, watts = carried.start_s[starts], work.watts[starts]
    end_s = start_s + work.jobs.run_s[starts]
    for at_s in range(0, 86_400, 60):
        _, most_w, cores = found[at_s // 3600]
        runs = (start_s <= at_s) & (end_s > at_s)
        assert watts[runs].sum() <= most_w <= 4 * 200 and cores <= 32
    assert max(cores for _, _, cores in found) == 32 and min(watts for _, watts, _ in found) >= 100


def test_the_command_prints_a_table_and_writes_json_and_a_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    log, out, table = tmp_path / "log.swf", tmp_path / "p.csv", tmp_path / "t.json"
    lines = (line.split(" ") for line in (SAMPLES / "generated-500.swf").read_text().splitlines())
    a_day_later = [[one[0], str(int(one[1]) + 86_400), *one[2:]] if one[0] != ";" else one for one in lines]
    log.write_text("\n".join(map(" ".join, a_day_later)) + "\n")
    words = [
        "profit",
        str(log),
        "--from-day",
        "1",
        "--durations",
        "predicted",
        "--search",
        "multi",
        "--iterations",
        "0",
    ]
    assert main([*words, "--profile", str(out), "--json", str(table)]) == 0
    shown = capsys.readouterr().out
    rows = json.loads(table.read_text())["rows"]
    assert "EMULATED" in shown and [row["durations"] for row in rows] == ["predicted", "predicted"]
    assert rows[0]["name"].startswith("rule ") and rows[1]["name"] == "multi" and rows[1]["schedules"] == 20
    assert f"{rows[1]['profit']:.1f}" in shown and rows[1]["with_idle"] < rows[1]["profit"]
    caps = read_caps(str(out))
    assert [cap.from_s for cap in caps] == list(range(86_400, 2 * 86_400 + 1, 3600)), "seconds of the log"
    assert caps[-1].watts == max(cap.watts for cap in caps), "the last hour's watts count no longer than it"
    assert out.read_text().splitlines()[1] == "from_s,watts,cores"


@pytest.mark.parametrize(
    ("words", "table", "message"),
    [
        (["--from-day", "900"], "", "no job on days 900 to 900; the last is of day"),
        (["--machine", "eurora"], "", "one kind of nodes with watts is needed, such as curie-fat"),
        (["--kwh", "-1"], "", "--kwh -1: give EUR from 0 to 1000"),
        (["--json", "both", "--profile", "both"], "", "--json and --profile both: would both write it; give two files"),
        (["--begin", "2030-01-01"], "", "--begin and --zone say when --prices are: give prices, or leave them out"),
        (
            ["--temperature"],
            "from_s,celsius\n0,20\n3600,21\n",
            "no temperature at second 7200: the table has 0 to 7200 s",
        ),
        (["--temperature"], "from_s,celsius\n0,20\n3600,\n", ":3: celsius cannot be '': a number is needed"),
        (["--temperature"], "from_s,celsius\n3600,20\n0,21\n", "two or more rows in order of time are needed"),
        (["--pue"], "celsius,watts,pue\n0,0,1.1\n5,100,1.2\n", "every pair of a temperature and watts is needed once"),
        (["--pue"], "celsius,watts,pue\n0,0,0.9\n", ":2: a PUE is 1 or more, and watts are 0 or more"),
        (
            ["--prices"],
            "time,price\n0,0.1\n3600,0.1\n10800,0.2\n",
            "no price of power at second 7200: complete --prices",
        ),
        (["--prices"], "time,price\n999999990,0.1\n999999999,0.1\n", "no price on these days; say with --begin"),
        (["--prices"], "time,cost\n0,0.1\n", "needs the columns time and price; it has time, cost"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, words: list[str], table: str, message: str
) -> None:
    path = tmp_path / "table.csv"
    path.write_text(table)
    given = [*words, str(path)] if table else words
    assert main(["profit", str(SAMPLES / "generated-500.swf"), *given]) == 2
    error = capsys.readouterr().err.splitlines()
    assert message in error[-1]


@pytest.mark.parametrize("option", ["--json", "--profile"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read_or_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture, option: str
) -> None:
    for path, reason in ((tmp_path / "no" / "p.csv", "No such file or directory"), (tmp_path, "Is a directory")):
        assert main(["profit", str(tmp_path / "no.swf"), option, str(path)]) == 1
        assert capsys.readouterr().err == f"clusterctl profit: {path}: {reason}; choose another {option}\n"


def test_profits_add_up() -> None:
    assert Profit(3.0, 1.0, 0.5) + Profit(1.0, 0.5, 0.25) == Profit(4.0, 1.5, 0.75)
