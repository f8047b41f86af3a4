"""The file of ``clusterctl calibration compare``: what each node draws over the median node of its model."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.errors import WrongUseError
from foundation.shell.errors import plain_reason
from foundation.shell.settings import read_toml

LOWEST: Final = 0.5
HIGHEST: Final = 2.0
"""Ours: nodes of one model do not differ by more; published differences are below 1.25."""


class _Factor(msgspec.Struct, frozen=True):
    watts: float
    half: float


def read_factors(path: Path) -> dict[str, float]:
    """By node. A factor that is within its interval of 1 is not known to differ, and counts as 1. ``WrongUseError`` in
    one line."""
    _, values = read_toml(path)
    found: dict[str, float] = {}
    for name, one in values.items():
        if not isinstance(one, dict):
            continue
        try:
            factor = msgspec.convert(one, _Factor, strict=False)
        except msgspec.ValidationError as error:
            raise WrongUseError(f"{path}: {name}: {plain_reason(str(error))}") from None
        if not LOWEST <= factor.watts <= HIGHEST or not factor.half >= 0:
            raise WrongUseError(f"{path}: {name}: watts = {factor.watts:g}, half = {factor.half:g}: not from 0.5 to 2")
        found[name] = factor.watts if abs(factor.watts - 1) > factor.half else 1.0
    return found
