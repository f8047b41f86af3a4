"""RMAP's model: time and watts of every configuration from a tenth of them (Patki et al., HPDC 2015, §4).

For each application two regressors, degree-2 polynomials in the logarithms of nodes, cores and cap, fitted by least
squares. The paper does not print the terms; here they are all ten: 1, each logarithm, and each product of two
(standardised). Predictions are kept between half the lowest and twice the highest value of the rows that were used.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from cluster_agent.scheduler.configurations.table import Configuration, Rows

TERMS: Final = 10
LEAST_ROWS: Final = 2 * TERMS
"""Ours: per application; with fewer rows a model would only repeat them."""

Values = npt.NDArray[np.float64]


class Errors(msgspec.Struct, frozen=True):
    """Relative errors on the rows that the model was not fitted to."""

    time_mean: float
    time_max: float
    watts_mean: float
    watts_max: float
    watts_too_low_max: float


def predicted(tables: Mapping[str, Rows], share: float, seed: int) -> tuple[dict[str, Rows], Errors]:
    """The tables as predicted by a model that was fitted to a share of each one's rows. ``ValueError`` if a table is
    too small."""
    rng = np.random.default_rng(seed)
    found: dict[str, Rows] = {}
    time_error, watts_error = [], []
    for name, rows in tables.items():
        if len(rows) < LEAST_ROWS:
            raise ValueError(
                f"application {name} has {len(rows)} configurations; a model needs {LEAST_ROWS} or more, and all"
                " are used: leave out model=regression"
            )
        shown = np.sort(rng.permutation(len(rows))[: min(max(ceil(share * len(rows)), TERMS), len(rows) - 1)])
        terms = _terms(rows)
        time_s, watts = np.array([row.time_s for row in rows]), np.array([row.watts for row in rows])
        model_s, model_w = (_fitted(terms, values, shown) for values in (time_s, watts))
        found[name] = tuple(map(_with, rows, model_s.tolist(), model_w.tolist()))
        hidden = np.setdiff1d(np.arange(len(rows)), shown)
        time_error.append(model_s[hidden] / time_s[hidden] - 1)
        watts_error.append(model_w[hidden] / watts[hidden] - 1)
    of_time, of_watts = np.concatenate(time_error), np.concatenate(watts_error)
    return found, Errors(
        float(np.abs(of_time).mean()),
        float(np.abs(of_time).max()),
        float(np.abs(of_watts).mean()),
        float(np.abs(of_watts).max()),
        float(max(-of_watts.min(), 0.0)),
    )


def _with(row: Configuration, time_s: float, watts: float) -> Configuration:
    return replace(row, time_s=time_s, watts=watts)


def _terms(rows: Rows) -> Values:
    """``terms[row, term]``."""
    logs = np.log([[row.nodes, row.cores, row.cap_w] for row in rows])
    spread = logs.std(axis=0)
    logs = (logs - logs.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    products = [logs[:, i] * logs[:, j] for i in range(3) for j in range(i, 3)]
    return np.column_stack([np.ones(len(rows)), logs, *products])


def _fitted(terms: Values, values: Values, shown: npt.NDArray[np.int64]) -> Values:
    weights = np.linalg.lstsq(terms[shown], np.log(values[shown]), rcond=None)[0]
    fitted: Values = np.clip(np.exp(terms @ weights), values[shown].min() / 2, values[shown].max() * 2)
    return fitted
