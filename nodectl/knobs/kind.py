"""What the agent must know of one kind of knob: the row that its file adds to ``nodectl.knobs.registry``.

Finding, restoring, ``doctor``, arbiter, decider, settings and effect watch loop over these rows and know no kind by
name. So a new knob is one file with its class and its ``KnobKind``, and one line in the registry
(docs/extending.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import numpy as np

from nodectl.knobs.api import Knob
from pmu.findings import Finding
from pmu.layout import KnobRange, Layout
from pmu.ports import Files, Ports
from pmu.readings import Sample, type_f64

BUSY_SHARE: Final = 0.5
"""Ours: a frequency domain or GPU less busy than this may rest at any clock below its limit."""


@dataclass(frozen=True, slots=True)
class Domain:
    """What a policy is chosen for: the knobs of one kind, which the arbiter settles one row each.

    ``what``: its knobs in the plural, for messages. ``rests_on``: whose readings its policies decide from; where they
    are missing, a row's request is dropped. ``policies``: those written for this domain, as ``{name:
    "module:ATTRIBUTE"}`` (``nodectl.policies.registry`` has those of "cpu" and "gpu").
    """

    name: str
    what: str
    rests_on: Literal["cpu", "gpu", ""] = "cpu"
    is_per_cpu: bool = False
    """A policy's request has one element per logical CPU, and a row takes the highest of its ``cpus``; otherwise one
    element per row."""
    is_there: Callable[[Layout], bool] | None = None
    """Whether a policy can be requested on this node; None: where there are rows."""
    of_layout: Callable[[Layout], Sequence[KnobRange]] | None = None
    """The rows, where the layout already describes what the knobs move; None: those that ``range_of`` found. A row may
    have several knobs (``KnobRange.also``)."""
    range_of: Callable[[Any, Layout], KnobRange] | None = None
    """The row of one knob: the range that it may be moved in during this run. Its ``high`` is the limit found at the
    start, so that no policy asks for more."""
    policies: Mapping[str, str] = field(default_factory=dict)

    def rows(self, layout: Layout) -> Sequence[KnobRange]:
        """The rows of this domain in a run on that layout."""
        if self.of_layout:
            return self.of_layout(layout)
        return [row for row in layout.ranges if row.domain == self.name]

    def has_work(self, layout: Layout) -> bool:
        """Whether a policy has anything to decide on."""
        return self.is_there(layout) if self.is_there else bool(self.rows(layout))


class Effect(Protocol):
    """What a sample shows of the knobs of one kind (``nodectl.knobs.effect``).

    ``rows``: places in the watch's arrays; ``rounding``: by how much the hardware may stay below what was requested,
    for each.
    """

    rows: np.ndarray
    rounding: type_f64

    def look(self, sample: Sample, seen: type_f64, floor: type_f64) -> None:
        """Fill both at ``rows``, in the knob's unit: what was ``seen``, and for clocks of busy parts the ``floor`` that
        they should reach. NaN, which is there already, where nothing can be said."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A kind of knob whose higher values allow more. It is never written above what the site or another program has set
    (``nodectl.write.ceilings``).

    ``highest``: the most that the hardware takes, in the knob's unit; None where it does not report it. May raise
    ``KnobError``. ``found``: the limit in a text that ``Knob.read`` returned; None where it sets none.
    """

    highest: Callable[[Any], int | None]
    found: Callable[[Any, str], int | None] = lambda knob, text: knob.number(text)
    is_seldom_lowered: bool = False
    """Found below the highest without a known reason, it is worth a line."""
    is_for_caps: bool = False
    """Nothing but a cap in watts moves it. So a value above ours is nobody's (``nodectl.write.cap_guard``)."""


@dataclass(frozen=True, slots=True)
class KnobKind:
    """One kind of knob. ``pattern`` matches the whole name of its knobs."""

    pattern: str
    find: Callable[[Files, Layout], tuple[Sequence[str], str]]
    """Names to look for on a node, and if there are none: why, or "" where a sensor's finding says so already."""
    open: Callable[[Ports, re.Match[str]], Knob]
    """The knob of a name; ``KnobError`` if it is not there. A restore after a crash needs only this."""
    look: Callable[[Files, Any], Finding]
    """What ``doctor`` says of a knob that can be read."""
    effect: Callable[[Mapping[str, int], Layout], Effect] | None = None
    """For knobs at these places: what shows whether clock or power follow. None: nothing that is sampled shows it."""
    domain: Domain | None = None
    """None: no policy moves it (a cap in watts may)."""
    name: str = ""
    """Of all of them: "uncore/*/max_khz"."""
    limit: Limit | None = None
    """None: a setting of which no value allows more than another."""

    def has(self, name: str) -> bool:
        """Whether a knob or finding of that name is of this kind."""
        return name == self.name or re.fullmatch(self.pattern, name) is not None


def pairs(row_of: Mapping[str, int], names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the knobs in ``names`` that exist, and their positions in ``names``."""
    found = [(row_of[name], position) for position, name in enumerate(names) if name in row_of]
    rows, positions = zip(*found, strict=True) if found else ((), ())
    return np.array(rows, np.int64), np.array(positions, np.int64)


def file_finding(files: Files, knob: Any) -> Finding:
    """What ``doctor`` says of a knob that is one attribute file: whether it can be written."""
    if files.writable(knob.path):
        return Finding(knob.name, "knob", True, True, True)
    return Finding(knob.name, "knob", True, True, False, False, f"{knob.path} is not writable; the agent needs root")
