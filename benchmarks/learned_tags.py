"""Are tags that a model has learned from counters right on programs that trained nothing? Against measured slowdown.

EMULATED, in virtual time: a twin of each machine, whose counters err by a fifth in ways that are drawn and hidden. The
truth of a program is its slowdown at the lowest clock (``calibration.table.tag_shares.clock_share``), never its name.
Random mixes of phases train a least-squares fit; the fit is a share of time as the truth is, a mean over the rows of a
window (``cluster_agent.budget.scored_tags``). Judged: mixes with other seeds, and the shipped workloads, free and at
seven tenths of the clock. *Rule*: the tag that the node's agent had for most of the run.

Near a mark a small error of the fit is a wrong tag, so the model may say nothing there, and the rule's tag stays. How
near that is, is chosen on the programs that train: for machines with stalled cycles and for those without, the shortest
distance from a mark beyond which ``REQUIRED`` of them are right at the lower end of a 95 % interval, each by a fit that
has not seen it.

``--ceiling`` prints what can be known at all from such counters: trees on forty thousand programs, without noise, also
with half of the counters' error, and where the least sure ones get no tag. It needs scikit-learn and a minute.

``--write FILE.py`` keeps the fit as a model for ``[jobs] tag_model`` that names every program, with ``--sure`` one that
says nothing near a mark. All tags together are right more often where it names every program, since the rule, which
gives the tag otherwise, is wrong there more often than the model.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.experiment import save
from calibration.table.tag_shares import tag_of
from cluster_agent.budget.scored_tags import CACHE_LINE, MARKS
from lab.node_demo.costs import run_at
from nodectl.decide.load_tag import LoadTag
from nodectl.loop.survey import survey
from nodectl.member.work import WorkDone
from pmu.decode import decode
from pmu.node import Instruments
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

MACHINES: Final = ("curie", "skylake-6146")
"""The first counts stalled cycles, the second does not."""
SHIPPED: Final = ("hpl", "stream", "imb", "gromacs", "nas")
BIAS: Final = 0.2
SECONDS: Final = 40.0
ROW_S: Final = 5
TRAIN, JUDGE, QUICK = 120, 120, 10
FIRST_TRAIN, FIRST_JUDGE = 2001, 1001
LOWER: Final = 0.7
REQUIRED: Final = 0.95
FOLDS: Final = 10
FURTHEST: Final = 0.175
"""Half of what is between the marks: from there on no score is mixed."""

CEILING_TRAIN, CEILING_JUDGE = 40_000, 8_000
COVERED: Final = (1.0, 0.9, 0.8, 0.7)
RIDGE: Final = 1e-3


class Run(msgspec.Struct, frozen=True):
    """``share``: the truth; ``rule``: the node agent's tag; ``rows``: a window."""

    machine: str
    program: str
    is_free: bool
    share: float
    rule: str
    rows: list[dict[str, float]]


class Judged(msgspec.Struct, frozen=True):
    """Shares of programs whose tag is right: by the ``rule``, by the fit for all (``learned``), by the fit where it
    says something (``sure``, of the share ``answered``), and by the fit there and the rule elsewhere (``live``)."""

    machine: str
    programs: str
    is_free: bool
    count: int
    rule: float
    learned: float
    error: float
    answered: float
    sure: float
    sure_from: float
    sure_to: float
    live: float


def basis(row: dict[str, float]) -> list[float]:
    """Of a row; a window's is the mean, since a program's share is the mean of its moments'."""
    stalled, ipc = row.get("stalled"), row["ipc"]
    traffic = row["bytes_per_s"] / row["cycles_per_s"]
    if stalled is None:
        return [0.0] * 7 + [1.0, ipc, ipc**2, ipc**3, traffic, traffic**2, ipc * traffic]
    return [1.0, stalled, stalled**2, stalled**3, ipc, traffic, stalled * ipc] + [0.0] * 7


def fitted(runs: Sequence[Run]) -> np.ndarray:
    columns = np.array([np.mean([basis(row) for row in run.rows], axis=0) for run in runs])
    return np.asarray(
        np.linalg.solve(
            columns.T @ columns + RIDGE * np.eye(columns.shape[1]), columns.T @ np.array([run.share for run in runs])
        )
    )


def scored(weights: np.ndarray, run: Run) -> float:
    return float(np.clip(np.mean([basis(row) for row in run.rows], axis=0) @ weights, 0.0, 1.0))


def doubts(runs: Sequence[Run]) -> tuple[float, float]:
    """Distances from a mark within which the model says nothing, of machines with and without stalled cycles."""
    fold = [int(run.program.rpartition(":")[2]) % FOLDS for run in runs]
    score = [0.0] * len(runs)
    for left_out in set(fold):
        weights = fitted([run for run, own in zip(runs, fold, strict=True) if own != left_out])
        for at, run in enumerate(runs):
            if fold[at] == left_out:
                score[at] = scored(weights, run)
    own = [[(one, run.share) for one, run in zip(score, runs, strict=True) if stalls == has_stalls(run)]
           for stalls in (True, False)]  # fmt: skip
    return doubt(own[0]), doubt(own[1])


def doubt(said: Sequence[tuple[float, float]]) -> float:
    """The shortest distance beyond which ``REQUIRED`` of these scores at least are on their truths' sides of marks."""
    for distance in np.arange(0.0, FURTHEST, 0.005):
        right = [tag_of(score) == tag_of(share) for score, share in said if from_mark(score) >= distance]
        if interval(sum(right), len(right))[0] >= REQUIRED:
            return round(float(distance), 3)
    return FURTHEST


def from_mark(score: float) -> float:
    return min(abs(score - mark) for mark in MARKS)


def has_stalls(run: Run) -> bool:
    return "stalled" in run.rows[0]


def interval(right: int, count: int) -> tuple[float, float]:
    """95 % by Wilson (1927)."""
    if not count:
        return 0.0, 1.0
    z = 1.959964
    middle, half = right / count + z**2 / (2 * count), z * np.sqrt(right * (count - right) / count + z**2 / 4) / count
    return float((middle - half) / (1 + z**2 / count)), float((middle + half) / (1 + z**2 / count))


def runs_of(machine: str, program: str, clocks: Sequence[float]) -> list[Run]:
    node = load_machine(machine)
    steps = node.domains[0].steps_khz
    free, top_khz = run_at(machine, program, 1, BIAS, SECONDS, 0)
    slow, _ = run_at(machine, program, 1, BIAS, SECONDS, steps[0])
    share = (slow.time_s / free.time_s - 1.0) / (top_khz / steps[0] - 1.0)
    found = []
    for part in clocks:
        khz = 0 if part == 1.0 else min(steps, key=lambda one: abs(one - part * top_khz))
        found.append(Run(machine, program, part == 1.0, share, *_observed(machine, program, khz)))
    return found


def _observed(machine: str, program: str, khz: int) -> tuple[str, list[dict[str, float]]]:
    """The rule's tag for most of the run, and rows as the cluster agent makes them of reports."""
    node = load_machine(machine)
    twin = Twin(node, load_workload(program, node, seed=1, bias=BIAS, duration_s=SECONDS), seed=1)
    rows, tags = list[dict[str, float]](), Counter[str]()
    with InProcess(twin) as inside:
        for index, domain in enumerate(node.domains):
            twin.set_domain(index, max_khz=khz or domain.max_khz)
        layout = survey(inside.ports).layout
        instruments, rule, clock = Instruments(inside.ports, layout), LoadTag(layout), inside.ports.clock
        before, work, second = instruments.sweep(), WorkDone(), 0
        while not twin.finished:
            clock.sleep_until_ns(clock.now_ns() + 1_000_000_000)
            now = instruments.sweep()
            sample, before, second = decode(layout, before, now), now, second + 1
            work.add(sample, layout)
            rule.add(sample)
            tags[rule.tag] += 1
            if second % ROW_S == 0:
                rows.append(_row(work.totals(), float(ROW_S)))
                work = WorkDone()
        instruments.close()
    del tags[""]
    return tags.most_common(1)[0][0] if tags else "", rows


def _row(counted: dict[str, int], elapsed_s: float) -> dict[str, float]:
    row = {
        "ipc": counted["instructions"] / counted["cycles"], "cycles_per_s": counted["cycles"] / elapsed_s,
        "bytes_per_s": counted["llc_misses"] * CACHE_LINE / elapsed_s,
    }  # fmt: skip
    return row if counted["stalled_cycles"] < 0 else row | {"stalled": counted["stalled_cycles"] / counted["cycles"]}


def judged(
    weights: np.ndarray, silent: tuple[float, float], machine: str, programs: str, is_free: bool, runs: Sequence[Run]
) -> Judged:
    shares, scores = np.array([run.share for run in runs]), np.array([scored(weights, run) for run in runs])
    right = np.array([tag_of(score) == tag_of(share) for score, share in zip(scores, shares, strict=True)])
    by_rule = np.array([run.rule == tag_of(run.share) for run in runs])
    says = np.array([from_mark(score) >= silent[not has_stalls(run)] for score, run in zip(scores, runs, strict=True)])
    sure = interval(int(right[says].sum()), int(says.sum()))
    return Judged(
        machine, programs, is_free, len(runs), float(by_rule.mean()), float(right.mean()),
        float(np.sqrt(np.mean((scores - shares) ** 2))), float(says.mean()),
        float(right[says].mean()) if says.any() else np.nan, *sure, float(np.where(says, right, by_rule).mean()),
    )  # fmt: skip


def counted(machine: str, count: int, seed: int, bias: float) -> tuple[np.ndarray, np.ndarray]:
    """Of so many mixes of the twin's kind (``twin.physics.families.mixed_cpu``), without noise and for as long as one
    likes: what its counters show at the highest clock, by phase, in figures for a learner; and which tag is true."""
    random, has_stalls = np.random.default_rng(seed), machine == MACHINES[0]
    figures, truths = [], []
    for _ in range(count):
        phases = int(random.integers(3, 7))
        beta = random.uniform(0.05, 0.95, phases)
        share = np.exp(random.uniform(np.log(2.0), np.log(20.0), phases))
        share /= share.sum()
        ipc = np.maximum(0.3 + 1.6 * beta + random.uniform(-0.3, 0.3, phases), 0.2)
        traffic = np.maximum((1.0 - beta) * 5.0 + random.uniform(-1.0, 1.0, phases), 0.1)
        error = random.choice((-1.0, 1.0), (4, phases)) * random.uniform(bias / 2, bias, (4, phases))
        seen = np.clip(beta * (1.0 + error[0]), 0.01, 0.99)  # as in twin.physics.curves.cpu_tables
        shown_ipc = ipc * (1.0 + 1.5 * error[2])
        shown_traffic = traffic * (1.0 - seen) / np.maximum(1.0 - beta, 0.01) * (1.0 + error[3])
        columns = [shown_ipc, shown_traffic, *([1.0 - seen] if has_stalls else [])]
        row = [float(phases)]
        for column in columns:
            order, mean = np.argsort(column), float((share * column).sum())
            until = np.cumsum(share[order])
            places = [min(int(np.searchsorted(until, part)), phases - 1) for part in (0.25, 0.5, 0.75)]
            row += [mean, float(np.sqrt((share * (column - mean) ** 2).sum())), column.min(), column.max()]
            row += [column[order[place]] for place in places] + [float((share * column**2).sum())]
            row += [float((share * column * other).sum()) for other in columns if other is not column]
        figures.append(row)
        truths.append(int(((share * beta).sum() > np.array(MARKS)).sum()))
    return np.array(figures), np.array(truths)


def ceiling(machine: str, bias: float) -> list[tuple[float, float]]:
    """For shares of all programs, how many tags of the surest ones are right: boosted trees that learned from
    ``CEILING_TRAIN`` programs, near what any rule could know from such counters."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # type: ignore[import-untyped]

    made = HistGradientBoostingClassifier(max_iter=200, learning_rate=0.08, l2_regularization=1.0, random_state=1)
    made.fit(*counted(machine, CEILING_TRAIN, 1, bias))
    figures, truths = counted(machine, CEILING_JUDGE, 2, bias)
    chances = made.predict_proba(figures)
    right, order = chances.argmax(axis=1) == truths, np.argsort(-chances.max(axis=1))
    return [(part, float(right[order[: int(part * len(order))]].mean())) for part in COVERED]


MODEL: Final = '''"""Tags from counters. EMULATED: learned from programs of the twin (benchmarks/learned_tags.py)."""

from cluster_agent.budget.scored_tags import MARKS
from cluster_agent.prediction.models import Model, NothingToSayError

WEIGHTS = {weights}
DOUBT, DOUBT_WITHOUT_STALLS = {silent}  # so near a mark the score may be on the wrong side of it


def basis(row):
    stalled, ipc = row.get("stalled"), row["ipc"]
    traffic = row["bytes_per_s"] / row["cycles_per_s"]
    if stalled is None:
        return [0.0] * 7 + [1.0, ipc, ipc**2, ipc**3, traffic, traffic**2, ipc * traffic]
    return [1.0, stalled, stalled**2, stalled**3, ipc, traffic, stalled * ipc] + [0.0] * 7


class Tags:
    def learn(self, ended):
        pass

    def predict(self, submissions):
        raise NothingToSayError

    def score(self, window):
        rows = [basis(row) for row in window if "bytes_per_s" in row]
        if not rows:
            raise NothingToSayError
        share = sum(weight * value for row in rows for weight, value in zip(WEIGHTS, row)) / len(rows)
        doubt = DOUBT if "stalled" in window[0] else DOUBT_WITHOUT_STALLS
        if min(abs(share - mark) for mark in MARKS) < doubt:
            raise NothingToSayError
        return min(max(share, 0.0), 1.0)


MODEL = Model("learned-tags", "least squares on counters of emulated programs", Tags)
'''


def model_text(weights: np.ndarray, silent: tuple[float, float]) -> str:
    """Of a file for ``[jobs] tag_model``."""
    return MODEL.format(weights=[round(float(one), 6) for one in weights], silent=silent)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learned_tags", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="some tens of programs")
    parser.add_argument("--write", type=Path, metavar="FILE.py", help="keep the model")
    parser.add_argument("--sure", action="store_true", help="which says nothing where its tag may be the wrong one")
    parser.add_argument("--ceiling", action="store_true", help="only what can be known at all")
    options = parser.parse_args(argv)
    if options.ceiling:
        for machine in MACHINES:
            for bias in (BIAS, BIAS / 2):
                each = ", ".join(f"{right:.1%} of {part:.0%}" for part, right in ceiling(machine, bias))
                print(f"EMULATED counters of {machine}, error {bias:.0%}: right {each}", flush=True)
        return 0
    counts = (3 * QUICK, QUICK) if options.quick else (TRAIN, JUDGE)
    train, judge = (
        [f"mixed-cpu:{first + number}" for number in range(count)]
        for first, count in zip((FIRST_TRAIN, FIRST_JUDGE), counts, strict=True)
    )
    print("EMULATED, virtual time")
    runs = [run for machine in MACHINES for program in train for run in runs_of(machine, program, (1.0, LOWER))]
    weights, silent, found = fitted(runs), doubts(runs), list[Judged]()
    print(f"--sure: nothing within {silent[0]:g} of a mark, without stalled cycles {silent[1]:g}: chosen in training")
    for machine in MACHINES:
        for name, programs in (("other mixes", judge), ("shipped", list(SHIPPED))):
            all_runs = [run for program in programs for run in runs_of(machine, program, (1.0, LOWER))]
            for is_free in (True, False):
                own = [run for run in all_runs if run.is_free == is_free]
                found.append(judged(weights, silent, machine, name, is_free, own))
                print(_line(found[-1]), flush=True)
    if options.write:
        options.write.write_text(model_text(weights, silent if options.sure else (0.0, 0.0)))
        os.chmod(options.write, 0o600)
    print("JSON:", save("learned_tags", {"rows": found}))
    return 0


def _line(row: Judged) -> str:
    clock = "free" if row.is_free else f"{LOWER:g} of the clock"
    return (
        f"{row.machine:13} {row.programs:12} {clock:17} {row.count:4} programs: rule right {row.rule:6.1%}, learned"
        f" {row.learned:6.1%} of all, and {row.sure:.1%} ({row.sure_from:.1%} to {row.sure_to:.1%}) of the"
        f" {row.answered:.1%} of which it says something (required: {REQUIRED:.0%}), with the rule elsewhere"
        f" {row.live:.1%}; error of the share {row.error:.3f}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
