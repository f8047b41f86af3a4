"""``clusterctl budget from-price`` and ``from-carbon``: a profile of watts by a tariff, or a grid's carbon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from cluster_agent.budget.budget_line import MOST_W
from cluster_agent.errors import WrongUseError
from cluster_agent.prices.price_profile import Bounds, cut, steps_of, written
from cluster_agent.prices.price_table import Spell, begin_of, read_spells, zone_of
from cluster_agent.replay.written_whole import one_file
from foundation.shell.plain_text import echo_block, say

DAY_S: Final = 86_400
PRICE, CARBON = "price", "co2_g_per_kwh"

OPTIONS: Final = (
    click.argument("path", metavar="FILE"),
    click.option("--least", type=float, required=True, metavar="W", help="Watts at the highest value."),
    click.option("--most", type=float, required=True, metavar="W", help="Watts at the lowest value."),
    click.option("--cores", type=click.IntRange(1), help="Of the machine; gives the profile a column of cores."),
    click.option("--zone", metavar="NAME", help="Time zone of times without an offset (default: this machine's)."),
    click.option("--begin", metavar="TIME", help="Second 0 of a job log; without it the profile has Unix seconds."),
    click.option("--days", type=click.IntRange(1), help="How many, from --begin or the first row on (default: all)."),
    click.option("--gap", type=float, metavar="W", help="Watts where FILE has no value (default: a gap is an error)."),
    click.option("--out", metavar="FILE.csv", help="Where to write the profile (default: print it)."),
)


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@click.command("from-price")
@_with_options
@click.option("--column", default=PRICE, metavar="NAME", help=f"Of FILE, with the prices (default: {PRICE}).")
def from_price(column: str, **given: Any) -> None:
    """Write a profile from the prices in FILE: more watts while power is cheap.

    FILE is CSV with the columns time and price, or Parquet with local_date and local_time. A price counts until the
    next row. The cheapest time gets --most, the dearest --least; between, watts are linear in the share of the time in
    which power is cheaper. After the last price the profile goes on with --most. A column that is no price, such as a
    country's load, is a proxy, and the profile says so.

    `clusterctl replay --cap`, `--policy energy-budget:profile=` and `clusterctl budget schedule` read the profile.
    """
    spells, remarks = _spells(column, **given)
    if PRICE not in column:
        remarks.append(f"{column} stands for a price, which it is not: a proxy")
    if negative := [one for one in spells if one.value < 0]:
        hours = sum(one.to_s - one.from_s for one in negative) / 3600
        remarks.append(f"{hours:g} h have a negative price, from second {negative[0].from_s} on; they rank as cheapest")
    _write(spells, remarks, **given)


@click.command("from-carbon")
@_with_options
@click.option("--column", default=CARBON, metavar="NAME", help=f"Of FILE, with the g/kWh (default: {CARBON}).")
def from_carbon(column: str, **given: Any) -> None:
    """Write a profile from the carbon intensity of a grid in FILE: more watts while power is clean.

    FILE and profile are those of `clusterctl budget from-price`.
    """
    spells, remarks = _spells(column, **given)
    if negative := [one for one in spells if one.value < 0]:
        raise WrongUseError(
            f"{given['path']}: {column} is {negative[0].value:g} at second {negative[0].from_s}, and no grid emits less"
            " than nothing; correct the table"
        )
    _write(spells, remarks, **given)


def _spells(
    column: str, path: str, least: float, most: float, zone: str | None, begin: str | None, days: int | None, **_: Any
) -> tuple[list[Spell], list[str]]:
    """What FILE has of the window, and whence it is."""
    if not 0 < least <= most <= MOST_W:
        raise WrongUseError(f"--least {least:g} --most {most:g}: give watts above 0, with --least the lower")
    of = zone_of(zone)
    begin_s = begin_of(begin, of)
    spells = read_spells(path, column, of)
    window = cut(spells, begin_s, None if days is None else days * DAY_S)
    if not window:
        raise WrongUseError(f"{path}: has no row from --begin {begin} on for so long; choose another")
    if begin_s is not None and window[0].from_s > 0:
        raise WrongUseError(f"{path}: begins {window[0].from_s} s after --begin {begin}; choose a later one")
    zero = "Unix seconds" if begin_s is None else f"seconds from {begin}"
    return window, [f"by {column} of {Path(path).name}, {zero}"]


def _write(
    spells: list[Spell],
    remarks: list[str],
    path: str,
    least: float,
    most: float,
    cores: int | None,
    gap: float | None,
    out: str | None,
    **_: Any,
) -> None:
    if gap is not None and not 0 < gap <= MOST_W:
        raise WrongUseError(f"--gap {gap:g}: give watts above 0")
    steps = steps_of(path, spells, Bounds(least, most, gap, cores))
    text = written(steps, remarks)
    for remark in remarks[1:]:
        say(remark)
    if out is None:
        echo_block(text.rstrip("\n"))
        return
    with one_file(out, "--out") as made:
        made.write_text(text)
    say(f"{len(steps)} steps in {out}; from second {steps[-1].from_s} on {most:g} W; nothing is known after it")
