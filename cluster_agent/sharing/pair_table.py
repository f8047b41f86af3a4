"""Measured speeds of applications that share a GPU, from a table in Gavel's columns.

A row is one run on one GPU: ``application,batch_size,partner,partner_batch_size,steps_per_s,partner_steps_per_s``, and
``gpu`` where the table has several. A row without a partner is the speed alone. A pair with 0 did not fit into memory,
or did not run. An application with another batch size is another *variant*, with other speeds.

A table of *halves of nodes* has for each application a row with the partner ``free`` as well: it runs on half the cores
of twice as many nodes, and nobody has the other half. There a job may be faster than alone on whole nodes, which is
its row without a partner.
Source of the columns: Narayanan et al., OSDI'20; github.com/stanford-futuredata/gavel, ``simulation_throughputs.json``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cluster_agent.errors import WrongUseError
from foundation.shell.errors import nearest
from foundation.shell.plain_text import TextError, read_text, rows_by_name

Float64s = npt.NDArray[np.float64]

COLUMNS: Final = (
    "application", "batch_size", "partner", "partner_batch_size", "steps_per_s", "partner_steps_per_s",
)  # fmt: skip

FASTEST: Final = 1.05
"""Ours: next to a partner nothing runs faster than alone; a little more than its speed alone is noise, and counts as
1."""

FREE: Final = "free"
"""The partner of an application on half nodes whose other half nobody has."""

FASTEST_ON_HALVES: Final = 4.0
"""Ours: half the cores of twice as many nodes have at most twice the memory bandwidth, and some more cache."""

AGREE: Final = 0.01
"""Ours: a pair may be listed from both sides, with speeds that differ by this share at most."""


class Variant(NamedTuple):
    """An application with its batch size; empty: it has none."""

    application: str
    batch_size: str = ""

    def __str__(self) -> str:
        return f"{self.application}:{self.batch_size}" if self.batch_size else self.application


@dataclass(frozen=True, slots=True)
class PairTable:
    """``speed[i, j]``: of variant i next to j, as a share of its speed alone, 0 to 1; 0: they do not run
    together; NaN: not measured. ``free[i]``: of i next to a free half; None: the table is not of halves of nodes."""

    gpu: str
    variants: tuple[Variant, ...]
    speed: Float64s
    free: Float64s | None = None


class _Row(NamedTuple):
    where: str
    first: Variant
    second: Variant | None
    speeds: tuple[float, float]


def read_pairs(path: str, gpu: str | None = None) -> PairTable:
    """The pairs of this GPU; None: of the only one in the table. ``WrongUseError`` names file and row."""
    gpu, rows = _of_gpu(path, gpu)
    on_halves = [row for row in rows if row.second is not None and row.second.application == FREE]
    fastest = FASTEST_ON_HALVES if on_halves else FASTEST
    alone = _alone(path, rows)
    at = {variant: index for index, variant in enumerate(alone)}
    speed, rows_of = np.full((len(at), len(at)), math.nan), dict[tuple[int, int], str]()
    for row in rows:
        if row.second is not None and row.second.application != FREE:
            _enter(row, row.second, alone, at, speed, rows_of, fastest)
    return PairTable(gpu, tuple(at), speed, _free(path, on_halves, alone, at) if on_halves else None)


def _alone(path: str, rows: list[_Row]) -> dict[Variant, tuple[float, str]]:
    """The speed alone of each variant, and its row."""
    alone: dict[Variant, tuple[float, str]] = {}
    for row in (row for row in rows if row.second is None):
        if row.first in alone:
            raise WrongUseError(f"{row.where}: {row.first} runs alone here and in {alone[row.first][1]}: delete one")
        if row.speeds[0] == 0:
            raise WrongUseError(f"{row.where}: {row.first} does not run alone: delete it, or give its steps_per_s")
        alone[row.first] = row.speeds[0], row.where
    if not alone:
        raise WrongUseError(f"{path}: no speed alone: a row without a partner is needed for each application")
    return alone


def _free(path: str, rows: list[_Row], alone: dict[Variant, tuple[float, str]], at: dict[Variant, int]) -> Float64s:
    """The speeds next to a free half, of each variant."""
    free = np.full(len(at), math.nan)
    for row in rows:
        if row.first not in at:
            raise WrongUseError(f"{row.where}: {row.first} has no speed alone: add its row without a partner")
        share = row.speeds[0] / alone[row.first][0]
        if not 0 < share <= FASTEST_ON_HALVES:
            raise WrongUseError(f"{row.where}: {row.first} runs at {share:.2f} times its speed alone: correct the row")
        free[at[row.first]] = share
    if math.isnan(free.sum()):
        missing = next(variant for variant, index in at.items() if math.isnan(free[index]))
        raise WrongUseError(f"{path}: {missing} has no row with the partner free, and others have: add it")
    return free


def _enter(
    row: _Row,
    second: Variant,
    alone: dict[Variant, tuple[float, str]],
    at: dict[Variant, int],
    speed: Float64s,
    rows_of: dict[tuple[int, int], str],
    fastest: float,
) -> None:
    """Put the speeds of a pair in their places; both sides of it may be listed."""
    for one in (row.first, second):
        if one not in alone:
            raise WrongUseError(f"{row.where}: {one} has no speed alone: add its row without a partner")
    i, j = at[row.first], at[second]
    if (i, j) in rows_of:
        raise WrongUseError(f"{row.where}: {row.first} next to {second} is also in {rows_of[i, j]}: delete one")
    rows_of[i, j] = row.where
    for one, other, (k, m), steps in (
        (row.first, second, (i, j), row.speeds[0]),
        (second, row.first, (j, i), row.speeds[1]),
    ):
        share = steps / alone[one][0]
        if share > fastest:
            raise WrongUseError(
                f"{row.where}: {one} runs at {share:.2f} times its speed alone next to {other}: correct this row, or"
                f" {alone[one][1]}"
            )
        share = min(share, 1.0) if fastest == FASTEST else share
        if i == j and not math.isnan(speed[k, m]):
            share = min(share, float(speed[k, m]))  # two of the same: the slower
        elif abs(speed[k, m] - share) > AGREE:  # False for NaN
            raise WrongUseError(
                f"{row.where}: {one} runs at {share:.2f} times its speed alone next to {other}, and at"
                f" {speed[k, m]:.2f} by {rows_of[j, i]}: correct one"
            )
        speed[k, m] = share


def _of_gpu(path: str, gpu: str | None) -> tuple[str, list[_Row]]:
    lines = _lines(path)
    gpus = sorted({row.get("gpu", "") for _, row in lines})
    if gpu is None and len(gpus) > 1:
        raise WrongUseError(f"{path}: has the GPUs {', '.join(gpus)}; name one with --gpu")
    chosen = gpus[0] if gpu is None else gpu
    if chosen not in gpus:
        raise WrongUseError(f"{path}: has no pairs of --gpu {chosen}{nearest(chosen, gpus)}")
    return chosen, list(_rows(path, [(number, row) for number, row in lines if row.get("gpu", "") == chosen]))


def _lines(path: str) -> list[tuple[int, dict[str, str]]]:
    """The rows by their names, with their line numbers; at least one."""
    try:
        header, rows = rows_by_name(read_text(path), "#")
        if missing := [name for name in COLUMNS if name not in header]:
            raise WrongUseError(f"{path}: lacks the column {missing[0]}; the first line must name {','.join(COLUMNS)}")
        found = [(number, {name: value.strip() for name, value in row.items()}) for number, row in rows]
    except (TextError, OSError) as error:
        raise WrongUseError(f"{path}: cannot read the pairs: {error.strerror}") from None
    if not found:
        raise WrongUseError(f"{path}: has no row below the names {','.join(COLUMNS)}")
    return found


def _rows(path: str, lines: list[tuple[int, dict[str, str]]]) -> Iterator[_Row]:
    for number, row in lines:
        where = f"{path}:{number}"
        if not row["application"]:
            raise WrongUseError(f"{where}: names no application")
        first = Variant(row["application"], row["batch_size"])
        steps = number_from_0(where, "steps_per_s", row["steps_per_s"])
        if row["partner"]:
            second = Variant(row["partner"], row["partner_batch_size"])
            is_free = second.application == FREE
            partner_steps = 0.0 if is_free else number_from_0(where, "partner_steps_per_s", row["partner_steps_per_s"])
            yield _Row(where, first, second, (steps, partner_steps))
        elif row["partner_batch_size"] or row["partner_steps_per_s"]:
            raise WrongUseError(f"{where}: has values of a partner, and names none")
        else:
            yield _Row(where, first, None, (steps, math.nan))


def number_from_0(where: str, name: str, text: str) -> float:
    """The number that this text is; ``WrongUseError`` if it is none, or below 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 2**53:
        raise WrongUseError(f"{where}: {name} cannot be {text!r}: a number from 0 is needed")
    return value
