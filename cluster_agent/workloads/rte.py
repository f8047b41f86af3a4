"""The French electricity load as a source of caps: the more the country draws, the lower the cap.

``rte:FILE:begin=2010-11-01,days=30,least_w=1e6,most_w=2e6`` reads a table (Parquet) of RTE's eCO2mix with the columns
``local_date``, ``local_time`` and ``load_mw``. Second 0 of the log is midnight of ``begin``. The cap of every
``every_s`` seconds is ``least_w`` at the highest load of these days, ``most_w`` at the lowest and linear between, by
the highest load of the span; the first begins with the log, the last has no end. No standard says how a contract maps
load to watts: the line is ours.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Final

import msgspec

from cluster_agent.cap_steps import FOREVER_S, Cap
from cluster_agent.choosing import read_params
from cluster_agent.errors import WrongUseError
from cluster_agent.workloads.parquet_tables import read_columns
from cluster_agent.workloads.swf import TraceError

NAME: Final = "rte"
DAY_S: Final = 86_400
COLUMNS: Final = ("local_date", "local_time", "load_mw")
MOST_MW: Final = 1_000_000
"""Ours: five times what France has ever drawn; no table of loads has more."""

MOST_CAPS: Final = 10_000
"""Ours: a schedule under more would take long."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``least_w`` and ``most_w`` must be given."""

    begin: str = "2010-11-01"
    days: int = 30
    least_w: float = 0.0
    most_w: float = 0.0
    every_s: int = 3600


def is_rte(text: str) -> bool:
    """Whether ``--cap`` names this source."""
    return text.startswith(f"{NAME}:")


def rte_caps(text: str) -> list[Cap]:
    """The caps, in order of time; ``WrongUseError`` with a one-line message."""
    path, _, given = text.removeprefix(f"{NAME}:").partition(":")
    params = read_params("--cap", f"{NAME}:{given}", NAME, Params)
    where = f"--cap {text}"
    try:
        first = date.fromisoformat(params.begin)
    except ValueError:
        raise WrongUseError(f"{where}: begin={params.begin} is not a date; write begin=2010-11-01") from None
    if not 0 < params.least_w <= params.most_w < float("inf"):
        raise WrongUseError(f"{where}: give least_w and most_w, watts above 0, with least_w the lower")
    if params.days < 1 or params.every_s < 900 or params.days * DAY_S // params.every_s > MOST_CAPS:
        raise WrongUseError(f"{where}: days must be at least 1, every_s at least 900, the caps at most {MOST_CAPS}")
    load: dict[int, int] = {}
    try:
        loads = _loads(path, first)
    except TraceError as error:
        raise WrongUseError(f"{where}: {error}") from None
    for at_s, load_mw in loads:
        if 0 <= at_s < params.days * DAY_S:
            span = at_s // params.every_s
            load[span] = max(load.get(span, 0), load_mw)
    if not load:
        raise WrongUseError(f"{where}: {path} has no load from {first} on; choose another begin=")
    lowest, highest = min(load.values()), max(load.values())
    slope_w = (params.most_w - params.least_w) / max(highest - lowest, 1)
    begins_s = [0, *(span * params.every_s for span in sorted(load)[1:])]
    ends_s = [*begins_s[1:], FOREVER_S]
    watts = [round(params.most_w - slope_w * (load[span] - lowest), 3) for span in sorted(load)]
    return [Cap(*one) for one in zip(begins_s, ends_s, watts, strict=True)]


def _loads(path: str, first: date) -> list[tuple[int, int]]:
    """(Seconds from midnight of ``first``, MW) of every row that has a load."""
    columns = read_columns(path, COLUMNS)
    found, midnight = [], datetime.combine(first, datetime.min.time())
    for row, (day, clock, load_mw) in enumerate(zip(*(columns[name] for name in COLUMNS), strict=True), 1):
        if load_mw is None:
            continue
        try:
            at_s = int((datetime.fromisoformat(f"{day}T{clock}") - midnight).total_seconds())
            load = int(load_mw)
        except (TypeError, ValueError, OverflowError):  # of another calendar or with a zone, and loads that are none
            raise TraceError(
                f"{path}: row {row} has no local date, local time and load in MW; correct or delete it"
            ) from None
        if not 0 <= load <= MOST_MW:
            raise TraceError(f"{path}: row {row} has a load of {load_mw} MW, which no country draws; correct it")
        found.append((at_s, load))
    return found
