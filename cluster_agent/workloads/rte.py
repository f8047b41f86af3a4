"""The French electricity load as a source of caps: the more the country draws, the lower the cap.

``rte:FILE:begin=2010-11-01,days=30,least_w=1e6,most_w=2e6`` reads a table (Parquet) of RTE's eCO2mix with the columns
``local_date``, ``local_time`` and ``load_mw``. Second 0 of the log is midnight of ``begin``. The cap of every
``every_s`` seconds is ``least_w`` at the highest load of these days, ``most_w`` at the lowest and linear between, by
the highest load of the span; the first begins with the log, the last has no end. No standard says how a contract maps
load to watts: the line is ours.
"""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.cap_steps import FOREVER_S, Cap
from cluster_agent.choosing import read_params
from cluster_agent.errors import WrongUseError

NAME: Final = "rte"
DAY_S: Final = 86_400
COLUMNS: Final = ("local_date", "local_time", "load_mw")
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
    for at_s, load_mw in _loads(where, path, first):
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


def _loads(where: str, path: str, first: date) -> list[tuple[int, int]]:
    """(Seconds from midnight of ``first``, MW) of every row that has a load."""
    try:
        import pyarrow.lib
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise WrongUseError(f"{where}: reading Parquet needs pyarrow; pip install 'nodectl[export]'") from None
    if not Path(path).is_file():
        raise WrongUseError(f"{where}: {path or 'FILE'}: there is no such file")
    try:
        table = pq.read_table(path, columns=list(COLUMNS)).to_pydict()
        rows = zip(*(table[name] for name in COLUMNS), strict=True)
    except OSError as error:
        raise WrongUseError(f"{where}: {path}: {error.strerror or error}") from None
    except (KeyError, pyarrow.lib.ArrowException):
        raise WrongUseError(f"{where}: {path}: not a table with the columns {', '.join(COLUMNS)}") from None
    found, midnight = [], datetime.combine(first, datetime.min.time())
    for day, clock, load_mw in rows:
        if load_mw is not None:
            at = datetime.fromisoformat(f"{day}T{clock}")
            found.append((int((at - midnight).total_seconds()), int(load_mw)))
    return found
