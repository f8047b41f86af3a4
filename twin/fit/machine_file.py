"""Fitted constants and their errors in a machine file: the text of the file, changed where the fit decides.

Comments and all other lines stay. ``[gpu.power]`` gets volts, watts and shares, ``[power]`` of a CPU volts and the
watts of a core; a table ``[gpu.fit]`` or ``[fit]`` says what they were fitted to and how well they fit, and replaces
one of an earlier fit.

The volts of a fit are relative: only ratios have an effect on power. They keep the file's volts at the top clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from twin.errors import TwinError
from twin.fit.judge import Fitted, WorkloadErrors
from twin.fit.law import Card
from twin.machine_tables import Fit, FitErrors, FitShares

MARK = "# fitted"


def fit_table(fitted: Fitted, sweep: str, sha256: str, card: str) -> Fit:
    """What a machine file says about a fit."""
    verdict = fitted.verdict
    return Fit(
        sweep=sweep,
        sha256=sha256,
        card=card,
        rate=fitted.card.rate,
        residual=_rounded(verdict.residual),
        two_clocks=_rounded(verdict.two_clocks) if verdict.two_clocks else None,
        top_clock=_rounded(verdict.top_clock) if verdict.top_clock else None,
        shares=tuple(
            FitShares(workload=name, **{kind: round(watts, 1) for kind, watts in shares.items()})
            for name, shares in fitted.shares_w.items()
        ),
    )


def with_gpu_fit(text: str, card: Card, fit: Fit, ladder_mhz: tuple[float, float]) -> str:
    """A machine file whose ``[gpu.power]`` follows the card. The busiest cores of the sweep get activity 1, the
    busiest memory a DRAM activity of 1. ``ladder_mhz``: the lowest and highest clock of the file's GPU."""
    memory = sum(each.memory_w for each in fit.shares)
    awake = sum(each.awake_w for each in fit.shares)
    volts, above = _volts(card, _top_volts(text, "gpu.power"), ladder_mhz)
    values = {
        "volts": volts,
        "ready_w": f"{card.idle_w + (card.ready_w - card.idle_w) * above:.1f}",
        "memory_w": f"{max(each.memory_w + each.awake_w for each in fit.shares):.1f}",
        "sm_w": f"{max(each.core_w for each in fit.shares) * above:.1f}",
        "sm_work": "1.0" if card.rate == "work" else "0.0",
        "memory_awake": f"{awake / (memory + awake) if memory + awake > 0 else 0.0:.3f}",
    }
    if card.idle_w != _number(text, "gpu.power", "idle_w"):
        values["idle_w"] = f"{card.idle_w:.1f}"
    return _with_table(_with_values(text, "gpu.power", values), "gpu.fit", fit)


def with_cpu_fit(text: str, card: Card, fit: Fit, ladder_mhz: tuple[float, float], cores: int) -> str:
    """A machine file whose ``[power]`` has the card's volts, and cores that draw at activity 1 what the busiest
    workload's did. What does not follow the clock stays as it is: a sweep at one number of busy cores cannot say which
    part of it is leakage, uncore or DRAM."""
    volts, above = _volts(card, _top_volts(text, "power"), ladder_mhz)
    values = {"volts": volts, "dynamic_w": f"{max(each.core_w for each in fit.shares) * above / cores:.3f}"}
    return _with_table(_with_values(text, "power", values), "fit", fit)


def named(text: str, name: str) -> str:
    """The file under another name."""
    return re.sub(r'(?m)^name = ".*"', f'name = "{name}"', text, count=1)


def _rounded(errors: WorkloadErrors) -> FitErrors:
    return FitErrors(
        points=errors.points,
        median_pct=round(errors.median_pct, 2),
        p95_pct=round(errors.p95_pct, 2),
        worst_pct=round(errors.worst_pct, 2),
        worst=errors.worst,
    )


def _volts(card: Card, top_v: float, ladder_mhz: tuple[float, float]) -> tuple[str, float]:
    """Points of the volts curve over the whole ladder, and its V^2 f at the ladder's top over that at the sweep's.

    Below the lowest measured clock it is flat, since nothing says how it goes on; above the highest a line goes on.
    """
    low_mhz, high_mhz = ladder_mhz
    (below_mhz, below_v), (last_mhz, last_v) = card.volts[-2:]
    points = [(mhz, volt) for mhz, volt in card.volts if low_mhz < mhz < high_mhz]
    at_top = last_v + (last_v - below_v) * (high_mhz - last_mhz) / (last_mhz - below_mhz)
    if high_mhz < last_mhz:
        at_top = float(np.interp(high_mhz, *np.array(card.volts).T))
    at_low = float(np.interp(low_mhz, *np.array(card.volts).T))
    points = [(low_mhz, at_low), *points, (high_mhz, at_top)]
    shown = "[" + ", ".join(f"[{mhz:g}, {volt * top_v / at_top:.3f}]" for mhz, volt in points) + "]"
    return shown, at_top**2 * high_mhz / last_mhz


def _section(text: str, table: str) -> tuple[int, int]:
    """Where the lines of a table begin and end in the text."""
    header = re.search(rf"(?m)^\[{re.escape(table)}\].*\n", text)
    if header is None:
        raise TwinError(f"the machine file has no table [{table}]")
    after = re.compile(r"(?m)^\[").search(text, header.end())
    return header.end(), after.start() if after else len(text)


def _top_volts(text: str, table: str) -> float:
    start, end = _section(text, table)
    found = re.search(r"(?m)^volts = .*?\[\s*[\d.]+\s*,\s*([\d.]+)\s*\]\s*\]", text[start:end])
    if found is None:
        raise TwinError(f"[{table}] has no line of volts")
    return float(found[1])


def _number(text: str, table: str, key: str) -> float:
    start, end = _section(text, table)
    found = re.search(rf"(?m)^{key} = ([\d.]+)", text[start:end])
    return float(found[1]) if found else float("nan")


def _with_values(text: str, table: str, values: dict[str, str]) -> str:
    for key, value in values.items():
        start, end = _section(text, table)
        line = f"{key} = {value}".ljust(35) + f" {MARK}\n"
        body, count = re.subn(rf"(?m)^{key} = .*\n", line, text[start:end], count=1)
        if not count:
            body = body.rstrip("\n") + f"\n{line}\n"
        text = text[:start] + body + text[end:]
    return text


def _with_table(text: str, table: str, fit: Fit) -> str:
    """The text with the table of a fit at its end, in place of an earlier one."""
    text = re.sub(rf"(?ms)^\[{re.escape(table)}\].*?(?=^\[(?!\[?{re.escape(table)})|\Z)", "", text).rstrip("\n")
    lines = [f"[{table}]".ljust(36) + "# written by `nodectl twin fit`; errors in per cent of the measured watts"]
    given = msgspec.structs.asdict(fit)
    for key in ("sweep", "sha256", "card", "rate"):
        lines.append(f'{key} = "{given[key]}"')
    lines += [f"{key} = {_inline(given[key])}" for key in ("residual", "two_clocks", "top_clock") if given[key]]
    lines += ["shares = [", *(f"    {_inline(each)}," for each in fit.shares), "]"]
    return f"{text}\n\n" + "\n".join(lines) + "\n"


def _inline(struct: FitErrors | FitShares) -> str:
    pairs: Iterable[tuple[str, object]] = msgspec.structs.asdict(struct).items()
    shown = [(key, value) for key, value in pairs if not (key in ("memory_w", "uncore_w") and value == 0.0)]
    return "{ " + ", ".join(f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
                            for key, value in shown) + " }"  # fmt: skip


def error_lines(fit: Fit) -> Sequence[str]:
    """The errors as lines for people."""
    kinds = (
        ("all watts given", fit.residual),
        ("left out, watts at two clocks given", fit.two_clocks),
        ("left out, watts at the top clock given", fit.top_clock),
    )
    return [
        f"{what}: {errors.points} points, median {errors.median_pct:.2f} %, 95 % below {errors.p95_pct:.2f} %, "
        f"worst {errors.worst_pct:.2f} % ({errors.worst})"
        for what, errors in kinds
        if errors is not None
    ]
