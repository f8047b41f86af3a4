"""How good are predictions of thermal hazard? Of hours at which both the prediction and what came of it are known.

An *alarm* is a row of predictions of 1, an *event* a row of labels of 1. *Lead time* is from the first right prediction
of an event to its first window in hazard: at most six hours, negative if the alarm came when the event had long begun.
A *false* alarm is one of which no hour was followed by hazard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cluster_agent.thermal_hazard.hazard_label import Bools, Floats

MONTH_H: Final = 730.0


@dataclass(frozen=True)
class Scores:
    """``lead_h``: the median over events that were foreseen, NaN for none. ``missed``: of ``events``, those of which no
    hour was predicted."""

    f1: float
    pr_auc: float
    precision: float
    recall: float
    rate: float
    lead_h: float
    events: int
    missed: int
    false_alarms_per_month: float


def f1_of(predicted: Bools, label: Bools) -> float:
    """The harmonic mean of precision and recall; 0 where nothing was predicted rightly."""
    both = int((predicted & label).sum())
    return 2.0 * both / max(int(predicted.sum() + label.sum()), 1)


def pr_auc(chance: Floats, label: Bools) -> float:
    """Average precision: the area under precision over recall, as steps; ties count together."""
    if not label.any():
        return float("nan")
    order = np.argsort(-chance, kind="stable")
    hits = np.cumsum(label[order])
    last = np.flatnonzero(np.append(np.diff(chance[order]) != 0, True))
    recall = hits[last] / hits[-1]
    return float(np.sum(np.diff(np.concatenate([[0.0], recall])) * hits[last] / (last + 1)))


def scores(chance: Floats, threshold: float, label: Bools, ahead_h: int = 6) -> Scores:
    """Of chances ``[hours]`` made at each hour for the window that ends ``ahead_h`` later, and its label."""
    predicted = chance >= threshold
    both = int((predicted & label).sum())
    events, alarms = _rows(label), _rows(predicted)
    leads = [lead for begin, end in events if (lead := _lead_h(predicted, begin, end, ahead_h)) is not None]
    false = sum(not label[begin:end].any() for begin, end in alarms)
    return Scores(
        f1=f1_of(predicted, label),
        pr_auc=pr_auc(chance, label),
        precision=both / max(int(predicted.sum()), 1),
        recall=both / max(int(label.sum()), 1),
        rate=float(label.mean()),
        lead_h=float(np.median(leads)) if leads else float("nan"),
        events=len(events),
        missed=len(events) - len(leads),
        false_alarms_per_month=false / (len(label) / MONTH_H),
    )


def _lead_h(predicted: Bools, begin: int, end: int, ahead_h: int) -> float | None:
    """Hours from the first right prediction of the event's hours to its first window in hazard."""
    right = np.flatnonzero(predicted[begin:end])
    return float(ahead_h - right[0]) if len(right) else None


def _rows(values: Bools) -> list[tuple[int, int]]:
    """Begin and end of each row of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], values.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
