"""What a policy is: two pure functions and a table of reasons.

A policy reads no clock, no file and no random source: everything it may use is in its parameters, the node's layout,
its own state and the sample. So a recorded journal replays to byte-equal decisions, and each decision can say why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

from pmu.layout import Layout
from pmu.readings import Sample, type_f64, type_i64, type_u8


@dataclass(frozen=True, slots=True)
class Request:
    """What a policy requests for the next interval.

    ``target``: CPU policies ``[n_cpus]`` in kHz, GPU policies ``[n_gpus]`` in MHz, policies of other domains one value
    per range of that domain in the layout, in the knob's unit; 0 = no request, it is free.
    ``reason``: index into the policy's ``reasons``, same shape.
    ``loss``: the policy's estimate of the extra time of the *past* interval, as a share of its time at a free clock
    (0.03 = 3 % more), NaN where unknown. ``saved_w``: its estimate of the watts saved in the past interval, NaN
    likewise.
    """

    target: type_i64
    reason: type_u8
    loss: type_f64
    saved_w: type_f64

    @staticmethod
    def free(size: int) -> Request:
        """No request for any of ``size`` clocks, reason 0, loss and saving unknown."""
        return Request(np.zeros(size, np.int64), np.zeros(size, np.uint8), np.full(size, np.nan), np.full(size, np.nan))


@dataclass(frozen=True, slots=True)
class Memory:
    """How a GPU policy hands to a later run of the same program what it has measured (``nodectl.remembered``). Pure, as
    ``decide``. ``card``: the index of the first GPU of a kind; ``phases``: what ``keep`` returned, read from a file.

    ``keep(params, layout, state, card)``: what is worth keeping of this run. ``recall(params, layout, state, card,
    phases)``: the state with that in place of what it had. ``fit(layout, state, card)``: the share (0 to 1) of this
    run's time that went to what was recalled, NaN without any. ``distance(params, layout, state, card, phases)``: how
    far what this run has seen at the highest clock is from these phases, in standard deviations; NaN: it has seen
    nothing yet.
    """

    keep: Callable[[Any, Layout, Any, int], Sequence[Any]]
    recall: Callable[[Any, Layout, Any, int, Sequence[Any]], Any]
    fit: Callable[[Layout, Any, int], float]
    distance: Callable[[Any, Layout, Any, int, Sequence[Any]], float]


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: of ``nodectl.policies.registry``, of an installed package, or of a file (docs/extending.md).

    ``domain`` names the knobs it serves (``nodectl.knobs.registry``): "cpu", "gpu", "uncore", ...
    ``params`` is a frozen msgspec.Struct type whose defaults are conservative; ``initial(params, layout)`` gives
    the first state (a frozen dataclass or msgspec.Struct of numbers and numpy arrays); ``decide(params, layout,
    state, sample)`` gives the next state and the request. ``waits``: parameters in seconds that are no shorter than
    a time of the policy's knobs, where that was measured (``nodectl.knobs.timing``). ``memory``: None for a policy that
    learns again in every run. ``is_woken``: it decides as soon as the job gives a hint, and not only once a period.
    """

    name: str
    domain: str
    summary: str
    source: str
    reasons: tuple[str, ...]
    params: type[msgspec.Struct]
    initial: Callable[[Any, Layout], Any]
    decide: Callable[[Any, Layout, Any, Sample], tuple[Any, Request]]
    waits: Mapping[str, Literal["effect_s", "dwell_s"]] = field(default_factory=dict)
    memory: Memory | None = None
    is_woken: bool = False
