"""Clocks for the stages of a pipeline: ours next to the min-cut planner of Perseus, on measured passes.

A large model is trained by stages of a pipeline, a card each: every micro-batch goes forward through all of them and
backward again, one forward and one backward pass in turn (1F1B). An iteration takes as long as its longest chain of
passes; a card that waits for another draws ``blocking_w``. Definitions of Chung et al., Perseus (SOSP'24):

    intrinsic slack    of passes off the longest chain: what they can save while the iteration takes no longer
    extrinsic slack    another pipeline of the same job takes ``straggler`` times as long: what can be saved until then

Theirs: ``lowtime``, the authors' planner (``pip install nodectl[planner]``). It fits an exponential to all measured
clocks of a pass, and shortens the slowest plan by a unit of time at a time, by minimum cuts of its longest chains.

Ours: from the highest clocks down, always the step that saves most per second of its own, if the iteration keeps its
time; a step that breaks it ends the descent of its pass. ``per pass``: each pass of each micro-batch has its clock, as
theirs; ``per kind``: forward and backward passes of a stage have one each; ``per stage``: one clock, which a lock of
the card keeps. ``each card alone``: the clock that ``nodectl calibrate gpus`` names, which knows nothing of the
pipeline. All clocks were measured, or ``FEW`` of them, and the others are predicted by the curves of ``calibration``.
Plans are made by what is believed and judged by what was measured. ``FEW`` and the rule were chosen on the A100; the
A40 judges.

``blocking_w`` is in no table: it is what the slowest plan of each card needs to have the energy of the published
frontier (``sosp24_data/emulation/iteration_time_energy``, 12 micro-batches, of which also ``PUBLISHED`` is).
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from benchmarks.experiment import save
from calibration.gpu_table.gpu_table import BOUND
from calibration.table.clock_curve import Given, predict
from twin.physics.families import SHARED

SWEEP: Final = SHARED / "gpu-stage-clocks/stage-clocks.csv"
MICRO_BATCHES: Final = 12
STRAGGLERS: Final = (1.0, 1.05, 1.1, 1.2, 1.3)
FEW: Final = 4
DEVIATION: Final = 0.003
"""Ours: relative, of a measured pass; what is left around the curves on the A100."""

Kind: TypeAlias = Literal["forward", "backward"]
Grouping: TypeAlias = Literal["per pass", "per kind", "per stage"]
ALONE, THEIRS = "each card alone", "lowtime"
KINDS: Final[tuple[Kind, ...]] = ("forward", "backward")
GROUPINGS: Final[tuple[Grouping, ...]] = ("per pass", "per kind", "per stage")


class Card(NamedTuple):
    """Of the published frontier, with 12 micro-batches: its slowest and its fastest plan."""

    blocking_w: float
    slowest: tuple[float, float]  # s, J
    fastest: tuple[float, float]


CARDS: Final = {
    "A100-SXM": Card(86.6, (3.456, 5736.36), (2.818, 6212.85)),
    "A40": Card(78.3, (8.7269, 10264.27), (7.5438, 11086.96)),
}
UNIT_S: Final = {"A100-SXM": 0.001, "A40": 0.002}
"""Of their planner: some 600 cuts of the longest chains."""


class Sweep(NamedTuple):
    """A pass at descending clocks."""

    mhz: tuple[int, ...]
    time_s: tuple[float, ...]
    energy_j: tuple[float, ...]


class Step(NamedTuple):
    """One pass of one micro-batch; ``after``: numbers of those that end before it starts."""

    kind: Kind
    stage: int
    micro_batch: int
    after: tuple[int, ...]


class Pipeline(NamedTuple):
    """Its passes, measured, and one iteration of it."""

    passes: Mapping[tuple[Kind, int], Sweep]
    steps: tuple[Step, ...]
    stages: int
    blocking_w: float


class Row(msgspec.Struct, frozen=True):
    """Shares against all cards at the highest clock, which wait for the straggler. ``clocks``: measured of each pass;
    ``slower``: beyond the straggler's time, or, without one, than at the highest clock."""

    card: str
    straggler: float
    planner: str
    clocks: int
    saved: float
    slower: float
    time_s: float
    energy_j: float


# --- the pipeline


def order(stage: int, stages: int, micro_batches: int) -> Iterator[tuple[Kind, int]]:
    """1F1B: forward passes until the first one comes back, then one of each in turn."""
    first = min(micro_batches, stages - stage)
    yield from (("forward", number) for number in range(first))
    for number in range(micro_batches):
        yield "backward", number
        if first + number < micro_batches:
            yield "forward", first + number


def iteration(stages: int, micro_batches: int) -> tuple[Step, ...]:
    """In an order in which each step comes after those that it waits for."""
    left = [list(order(stage, stages, micro_batches)) for stage in range(stages)]
    steps: list[Step] = []
    number: dict[tuple[Kind, int, int], int] = {}
    last: dict[int, int] = {}
    while any(left):
        for stage, own in enumerate(left):
            while own:
                kind, micro_batch = own[0]
                before = stage - 1 if kind == "forward" else stage + 1
                wanted = (kind, before, micro_batch)
                if 0 <= before < stages and wanted not in number:
                    break
                after = {last[stage]} if stage in last else set()
                after |= {number[wanted]} if wanted in number else set()
                last[stage] = number[kind, stage, micro_batch] = len(steps)
                steps.append(Step(kind, stage, micro_batch, tuple(sorted(after))))
                del own[0]
    return tuple(steps)


@cache
def pipeline(card: str, micro_batches: int = MICRO_BATCHES) -> Pipeline:
    with SWEEP.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == card]
    rows.sort(key=lambda row: -float(row["clock_mhz"]))
    passes: dict[tuple[Kind, int], Sweep] = {}
    for kind in KINDS:
        for ends in dict.fromkeys(row["stages"] for row in rows):
            own = [row for row in rows if (row["instruction"], row["stages"]) == (kind, ends)]
            sweep = Sweep(
                tuple(int(row["clock_mhz"]) for row in own),
                tuple(float(row["time_s"]) for row in own),
                tuple(float(row["energy_j"]) for row in own),
            )
            first, _, end = ends.partition("-")
            passes |= {(kind, stage): sweep for stage in range(int(first), int(end) + 1)}
    stages = len(passes) // 2
    return Pipeline(passes, iteration(stages, micro_batches), stages, CARDS[card].blocking_w)


def time_of(steps: Sequence[Step], durations: Sequence[float]) -> float:
    """The longest chain, s."""
    ends: list[float] = []
    for step, duration in zip(steps, durations, strict=True):
        ends.append(max((ends[number] for number in step.after), default=0.0) + duration)
    return max(ends)


def judged(of: Pipeline, places: Sequence[int], until_s: float = 0.0) -> tuple[float, float]:
    """Seconds and joules of an iteration, each step at the clock with this place in its sweep; cards that wait draw
    ``blocking_w``, also for another pipeline."""
    sweeps = [of.passes[step.kind, step.stage] for step in of.steps]
    durations = [sweep.time_s[place] for sweep, place in zip(sweeps, places, strict=True)]
    time_s = time_of(of.steps, durations)
    waits_s = of.stages * max(time_s, until_s) - sum(durations)
    return time_s, sum(sweep.energy_j[at] for sweep, at in zip(sweeps, places, strict=True)) + of.blocking_w * waits_s


# --- ours


def few(count: int, places: int) -> list[int]:
    """Evenly spread, both ends among them."""
    return sorted({round(at) for at in np.linspace(0, places - 1, count)})


def believed(of: Pipeline, count: int) -> Pipeline:
    """The pipeline with passes as ``calibration`` predicts them from so many clocks."""
    sweeps = {sweep: key for key, sweep in of.passes.items()}  # equal stages are measured once
    watts, times = {}, {}
    for sweep, key in sweeps.items():
        at = few(count, len(sweep.mhz))
        clocks = [float(sweep.mhz[place]) for place in at]
        every = [float(mhz) for mhz in sweep.mhz]
        own_w = [sweep.energy_j[place] / sweep.time_s[place] for place in at]
        own_s = [sweep.time_s[place] for place in at]
        watts[key] = Given(clocks, own_w, [DEVIATION * value for value in own_w], every)
        times[key] = Given(clocks, own_s, [DEVIATION * value for value in own_s], every)
    found_w, found_s = predict("watts", watts), predict("time", times)
    made = {
        sweep: Sweep(
            sweep.mhz,
            tuple(found_s[key].value.tolist()),
            tuple((found_s[key].value * found_w[key].value).tolist()),
        )
        for sweep, key in sweeps.items()
    }
    return of._replace(passes={key: made[sweep] for key, sweep in of.passes.items()})


def group_of(step: Step, grouping: Grouping) -> tuple[object, ...]:
    match grouping:
        case "per pass":
            return step.kind, step.stage, step.micro_batch
        case "per kind":
            return step.kind, step.stage
        case "per stage":
            return (step.stage,)


def ways_down(points: Sequence[tuple[float, float]]) -> list[tuple[float, int]]:
    """The places of (s, J) from the second on that cost fewer joules than all before, each with the joules per second
    of the part of the lower hull that it lies under: what the whole descent brings, not the next clock's noise."""
    found: list[tuple[float, int]] = []
    first, least = 0, points[0][1]
    while True:
        time_s, joules = points[first]
        ends = [
            ((joules - points[at][1]) / (points[at][0] - time_s), at)
            for at in range(first + 1, len(points))
            if points[at][0] > time_s and points[at][1] < joules
        ]
        if not ends:
            return found
        slope, end = max(ends)
        for at in range(first + 1, end + 1):
            if points[at][1] < least:
                found.append((slope, at))
                least = points[at][1]
        first = end


def ours(of: Pipeline, within_s: float, grouping: Grouping) -> list[int]:
    """For each step of the iteration the place of its clock. ``per pass`` starts from the highest clocks and from the
    plans of both other groupings, and the plan of the fewest joules counts."""
    if grouping != "per pass":
        return descent(of, within_s, grouping, [0] * len(of.steps))
    starts = [[0] * len(of.steps), *(ours(of, within_s, rough) for rough in GROUPINGS[1:])]
    return min(
        (descent(of, within_s, grouping, start) for start in starts), key=lambda plan: judged(of, plan, within_s)[1]
    )


def descent(of: Pipeline, within_s: float, grouping: Grouping, start: Sequence[int]) -> list[int]:
    """Down from a plan, always the step that saves most per second; equal ones by turns."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, step in enumerate(of.steps):
        groups.setdefault(group_of(step, grouping), []).append(number)
    sweeps = [of.passes[step.kind, step.stage] for step in of.steps]
    clocks = len(sweeps[0].mhz)
    ways, points = {}, {}
    for name, numbers in groups.items():
        own = [sweeps[number] for number in numbers]
        points[name] = [
            (
                sum(sweep.time_s[at] for sweep in own),
                sum(sweep.energy_j[at] - of.blocking_w * sweep.time_s[at] for sweep in own),
            )
            for at in range(clocks)
        ]
        ways[name] = [one for one in ways_down(points[name]) if one[1] > start[numbers[0]]]
    places = list(start)
    durations = [sweep.time_s[place] for sweep, place in zip(sweeps, places, strict=True)]

    def fits(name: tuple[object, ...], place: int) -> bool:
        """Whether the iteration keeps its time with the group at this place, which it then takes."""
        before = [(durations[number], places[number]) for number in groups[name]]
        for number in groups[name]:
            durations[number], places[number] = sweeps[number].time_s[place], place
        if time_of(of.steps, durations) <= within_s * (1 + 1e-9):
            return True
        for number, (duration, at) in zip(groups[name], before, strict=True):
            durations[number], places[number] = duration, at
        return False

    waiting = [(-own[0][0], own[0][1], 0, name) for name, own in ways.items() if own]
    heapify(waiting)
    while waiting:
        _, place, reached, name = heappop(waiting)
        if fits(name, place) and reached + 1 < len(ways[name]):
            slope, place = ways[name][reached + 1]
            heappush(waiting, (-slope, place, reached + 1, name))
    return places


def alone(of: Pipeline) -> list[int]:
    """Each card at the clock of the fewest joules within ``BOUND``, of both kinds of passes together."""
    found = []
    for stage in range(of.stages):
        own = [of.passes[kind, stage] for kind in KINDS]
        times = np.sum([sweep.time_s for sweep in own], axis=0)
        joules = np.sum([sweep.energy_j for sweep in own], axis=0)
        found.append(int(np.where(times <= (1 + BOUND) * times[0], joules, np.inf).argmin()))
    return [found[step.stage] for step in of.steps]


# --- theirs


def theirs(of: Pipeline, unit_s: float) -> Iterator[list[int]]:
    """The plans of ``lowtime`` from the slowest to the fastest: for each step the place of its clock."""
    import networkx  # both are in an extra that this benchmark alone needs
    from lowtime.cost_model import ExponentialModel
    from lowtime.graph_utils import add_sink_node, add_source_node
    from lowtime.operation import CandidateExecutionOptions, ExecutionOption, Operation, OperationSpec
    from lowtime.solver import PhillipsDessouky

    specs = {}
    for sweep in set(of.passes.values()):
        options = CandidateExecutionOptions(
            options=[
                ExecutionOption(real_time=time_s, unit_time=unit_s, cost=energy_j, knob=place)
                for place, (time_s, energy_j) in enumerate(zip(sweep.time_s, sweep.energy_j, strict=True))
            ]
        )
        for option in options.options:
            option.cost -= of.blocking_w * option.quant_time * option.unit_time
        specs[sweep] = OperationSpec(options=options, cost_model=ExponentialModel(options, search_strategy="best"))
    graph = networkx.DiGraph()
    operations = [Operation(spec=specs[of.passes[step.kind, step.stage]]) for step in of.steps]
    for number, (step, operation) in enumerate(zip(of.steps, operations, strict=True)):
        graph.add_node(number + 2, op=operation)
        graph.add_edges_from((before + 2, number + 2) for before in step.after)
    add_source_node(graph, 0)
    add_sink_node(graph, 1)
    graph.graph["source_node"], graph.graph["sink_node"] = 0, 1
    for _ in PhillipsDessouky(graph).run():
        yield [operation.assigned_knob for operation in operations]


# --- the table


def rows_of_ours(card: str) -> Iterator[Row]:
    for straggler in STRAGGLERS:
        for clocks in (len(pipeline(card).passes["forward", 0].mhz), FEW):
            yield from (row_of_ours(card, straggler, planner, clocks) for planner in (*GROUPINGS, ALONE))


def row_of_ours(card: str, straggler: float, planner: str, clocks: int) -> Row:
    of = pipeline(card)
    known = of if clocks == len(of.passes["forward", 0].mhz) else believed(of, clocks)
    within_s = straggler * judged(known, [0] * len(of.steps))[0]
    grouping = next((one for one in GROUPINGS if one == planner), None)
    return row_of(card, straggler, planner, clocks, ours(known, within_s, grouping) if grouping else alone(known))


def row_of(card: str, straggler: float, planner: str, clocks: int, places: Sequence[int]) -> Row:
    of = pipeline(card)
    top_s = judged(of, [0] * len(of.steps))[0]
    until_s = straggler * top_s
    base_j = judged(of, [0] * len(of.steps), until_s)[1]
    time_s, energy_j = judged(of, places, until_s)
    return Row(
        card, straggler, planner, clocks, 1 - energy_j / base_j, max(0.0, time_s / until_s - 1), time_s, energy_j
    )


def rows_of_theirs(card: str) -> Iterator[Row]:
    """Of all plans the one of the fewest joules within the straggler's time; without one, the fastest."""
    of = pipeline(card)
    plans = list(theirs(of, UNIT_S[card]))
    times = [judged(of, plan)[0] for plan in plans]
    top_s = judged(of, [0] * len(of.steps))[0]
    for straggler in STRAGGLERS:
        within_s = max(straggler * top_s, min(times))
        fit = [plan for plan, time_s in zip(plans, times, strict=True) if time_s <= within_s]
        best = min(fit, key=lambda plan: judged(of, plan, straggler * top_s)[1])
        yield row_of(card, straggler, THEIRS, len(of.passes["forward", 0].mhz), best)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_frontier", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the A100 alone")
    options = parser.parse_args(arguments)
    if not SWEEP.exists():
        print(f"pipeline_frontier: needs {SWEEP}")
        return 1
    rows: list[Row] = []
    warnings.filterwarnings("ignore", module="lowtime")  # starts of its fits that fail
    print(f"{'card':10} straggler  {'planner':17} clocks   saved  slower      s        J")
    for card in list(CARDS)[: 1 if options.quick else None]:
        found = list(rows_of_ours(card))
        try:
            found += rows_of_theirs(card)
        except ModuleNotFoundError as error:
            print(f"{card}: their planner is left out: no module {error.name} (pip install 'nodectl[planner]')")
        for row in sorted(found, key=lambda row: row.straggler):
            print(
                f"{row.card:10} {row.straggler:9.2f}  {row.planner:17} {row.clocks:6} {100 * row.saved:7.2f}"
                f" {100 * row.slower:7.2f} {row.time_s:8.3f} {row.energy_j:8.0f}"
            )
        rows += found
        of, published = pipeline(card), CARDS[card]
        top_s, top_j = judged(of, [0] * len(of.steps))
        print(
            f"{card}: highest clocks {top_s:.4f} s, {top_j:.0f} J; published: fastest {published.fastest[0]:.4f} s,"
            f" {published.fastest[1]:.0f} J, {100 * (1 - published.fastest[1] / top_j):.1f} % less"
        )
    print("JSON:", save("pipeline_frontier", {"rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
