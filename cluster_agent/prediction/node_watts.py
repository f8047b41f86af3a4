"""What a node of the partition draws at most and at least under load, as its calibration measured it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from cluster_agent.errors import WrongUseError
from foundation.sealed_file import SealedFileError, sealed_text

T = TypeVar("T")

LEVEL: Final = "all"
"""Rows of all cores: of a shared node a job is charged by its cores."""


class NodeWatts(msgspec.Struct, frozen=True):
    """Watts for each core in use, of the kernels that draw least and most at the highest clock, idle share included."""

    least_w: float
    most_w: float


def of_table(path: Path, read: Callable[[dict[str, Any]], T]) -> T:
    """What ``read`` makes of the values of a P-state table. ``WrongUseError`` in one line that names the file."""
    try:
        return read(tomllib.loads(sealed_text(path)))
    except SealedFileError as error:
        raise WrongUseError(str(error)) from None
    except (tomllib.TOMLDecodeError, RecursionError, KeyError, TypeError, ValueError, AttributeError):
        raise WrongUseError(f"{path}: is no P-state table of `nodectl calibrate run`") from None


def rows_of(values: dict[str, Any], *names: str) -> Iterator[list[Any]]:
    """These columns of every row. ``KeyError``, ``TypeError`` or ``ValueError`` if it is no table."""
    columns = [values["columns"].index(name) for name in names]
    return ([row[at] for at in columns] for row in values["rows"])


def node_watts(path: Path) -> NodeWatts:
    """Of a table's file. ``WrongUseError`` in one line that names it."""
    known = [one for one in of_table(path, _per_core) if math.isfinite(one) and one > 0]
    if len(known) < 2:
        raise WrongUseError(f"{path}: has no watts of the node for two kernels on {LEVEL} cores: measure with a meter")
    return NodeWatts(min(known), max(known))


def _per_core(values: dict[str, Any]) -> list[float]:
    rows = [row for row in rows_of(values, "level", "khz", "cores", "node_w") if row[0] == LEVEL]
    top_khz = max((khz for _, khz, _, _ in rows), default=0)
    return [float(watts) / max(int(cores), 1) for _, khz, cores, watts in rows if khz == top_khz]
