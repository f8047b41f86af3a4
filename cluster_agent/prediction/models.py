"""Models of a site's own: who predicts watts of jobs instead of the nearest past jobs, and what happens if he fails.

A model is an object called ``MODEL`` in ``FILE.py``, or what a package announces in the group ``clusterctl.models``, by
the rules of policies: it belongs to root or to this user, nobody else may write it, and its SHA-256 is recorded.
``new`` makes one that has learned nothing, with ``learn(ended)`` and ``predict(submissions)``; ``score(window)`` is for
models of jobs' tags (``budget.scored_tags``), and may be missing.

A model only advises. Where it raises, answers something that cannot be, or, live, takes too long, the nearest past jobs
answer instead, an alarm says so with the model's line, and after ``MOST_FAILURES`` in a row it is not called any more.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from cluster_agent import choosing
from cluster_agent.cluster import MOST_W
from cluster_agent.errors import WrongUseError
from cluster_agent.prediction.job_power import PowerPredictor, Prediction, Submission
from foundation.shell.extension import Extension, Extensions, is_file, located, misfit
from foundation.shell.plain_text import say

MOST_FAILURES: Final = 8
"""Ours: failures in a row after which a model is left alone until the next start."""

PATIENCE_S: Final = 0.05
"""Ours: so long a live partition waits for one answer; leases must not end meanwhile."""


SERVED: Final = "cluster_agent.model_service.served_model"
"""The module that finds models of folders. It imports this one."""


class NothingToSayError(Exception):
    """A model does not know, and that is no failure: the nearest past jobs answer, without an alarm."""


class Ended(msgspec.Struct, frozen=True):
    """A job that has ended, and what it drew; None: not known."""

    submission: Submission
    average_w: float
    maximum_w: float | None = None


class Quantiles(msgspec.Struct, frozen=True):
    """Watts of a whole job. ``expected_w``: the mean, for sums; ``typical_w``: the median, to show."""

    typical_w: float
    expected_w: float
    maximum_w: float


class Learner(Protocol):
    """What ``Model.new`` makes."""

    def learn(self, ended: Sequence[Ended]) -> None:
        """Jobs that have ended since the last call, in the order of their ends."""
        ...

    def predict(self, submissions: Sequence[Submission]) -> Sequence[Quantiles]:
        """One answer for each. A learner may have ``score``, too: from 0 to 1, for a stretch of measurements."""
        ...


class Model(msgspec.Struct, frozen=True):
    """A model that can be chosen."""

    name: str
    summary: str
    new: Callable[[], Any]
    why: Callable[[Submission], str] = lambda submission: "a model of the site"
    """What the answer for a job rests on, in words."""


def _misfit(model: Model) -> str:
    return f"new: {problem}" if (problem := misfit(model.new)) else ""


_MODEL: Final = re.compile(r"[:,]\s*model\s*=([^,]*)")
"""The parameter in the text of a policy, with spaces as the policy's own reader takes them."""

_ADDED: Final = Extensions("clusterctl.models", Model, "MODEL", (), _misfit)


def find_model(choice: str) -> Extension[Model]:
    """What is chosen, and where it came from; ``WrongUseError`` in one line."""
    if "/" in choice and not is_file(choice):
        found: Extension[Model] = importlib.import_module(SERVED).find(choice)
        return found
    return choosing.find_named(choice, "model", "give FILE.py, or install its package", _ADDED, {}, "MODEL")


class SafePredictor:
    """``predict`` and ``learn`` as of ``PowerPredictor``: by a model, else by the nearest past jobs, which learn as
    well."""

    def __init__(
        self,
        model: Extension[Model],
        otherwise: PowerPredictor,
        say: Callable[[str], None] = lambda line: None,
        clock_s: Callable[[], float] | None = None,
        instead: str = "the nearest past jobs predict instead",
    ) -> None:
        """``clock_s``: judges how long an answer takes; None: a replay, which must be the same on any machine.
        ``instead``: what happens where it fails, for the alarm."""
        self._otherwise, self._say, self._clock_s, self._instead = otherwise, say, clock_s, instead
        self._name, self._root = model.value.name, model.root
        self.trouble = ""
        """Why it was not the model that answered last; empty: it was."""
        self._failures = 0
        self._learner: Any = None
        try:
            self._learner = model.value.new()
        except (Exception, SystemExit) as error:
            self._fail(located(error, self._root), is_over=True)

    @property
    def nearest(self) -> PowerPredictor:
        """Who answers where the model fails; it has learned the same."""
        return self._otherwise

    def predict(self, job: Submission) -> Prediction:
        """Of one job."""
        found = self._otherwise.predict(job)
        if self._learner is None:
            return found
        began_s = self._clock_s() if self._clock_s else 0.0
        try:
            answer = self._learner.predict([job])
            problem = _nonsense(answer, job)
        except NothingToSayError:
            self._recover()
            return found
        except (Exception, SystemExit) as error:
            problem = located(error, self._root)
        if self._clock_s and not problem and (took_s := self._clock_s() - began_s) > PATIENCE_S:
            problem = f"took {took_s:.2f} s for one job"
        if problem:
            self._fail(problem)
            return found
        self._recover()
        one = answer[0]
        return Prediction(
            float(one.typical_w), float(one.expected_w), float(one.maximum_w), "model", found.similar
        )  # fmt: skip

    def learn(self, job: Submission, average_w: float, maximum_w: float | None = None) -> None:
        """``ValueError`` for watts that are not above 0, which no model gets."""
        self._otherwise.learn(job, average_w, maximum_w)
        if self._learner is None:
            return
        try:
            self._learner.learn([Ended(job, average_w, maximum_w)])
        except (Exception, SystemExit) as error:
            self._fail(located(error, self._root))

    def score(self, window: Sequence[Mapping[str, float]]) -> float | None:
        """How likely something is by the model, for what was measured in a stretch of time; None: it does not say."""
        if self._learner is None or not hasattr(self._learner, "score"):
            return None
        began_s = self._clock_s() if self._clock_s else 0.0
        try:
            found = self._learner.score(window)
            problem = "" if isinstance(found, int | float) and 0 <= found <= 1 else f"score is {found!r}"
        except NothingToSayError:
            self._recover()
            return None
        except (Exception, SystemExit) as error:
            problem = located(error, self._root)
        if self._clock_s and not problem and (took_s := self._clock_s() - began_s) > PATIENCE_S:
            problem = f"took {took_s:.2f} s for one score"
        if problem:
            self._fail(problem)
            return None
        self._recover()
        return float(found)

    def _fail(self, problem: str, is_over: bool = False) -> None:
        self._failures += 1
        if not self.trouble:
            self._say(f"ALARM: model {self._name}: {problem}; {self._instead}")
        self.trouble = f"model {self._name}: {problem}"
        if is_over or self._failures >= MOST_FAILURES:
            self._learner = None

    def _recover(self) -> None:
        if self.trouble:
            self._say(f"the alarm is over: {self.trouble}")
        self.trouble, self._failures = "", 0


def _nonsense(answer: Any, job: Submission) -> str:
    """What is wrong with an answer for one job; empty: nothing."""
    if not isinstance(answer, Sequence) or len(answer) != 1 or not isinstance(answer[0], Quantiles):
        return "predict did not answer one Quantiles for one submission"
    one, most_w = answer[0], MOST_W * max(job.units, 1)
    for name in ("typical_w", "expected_w", "maximum_w"):
        watts = getattr(one, name)
        if not isinstance(watts, int | float) or not math.isfinite(watts) or not 0 < watts < most_w:
            return f"{name} is {watts!r}"
    if one.maximum_w < one.typical_w:
        return f"maximum_w {one.maximum_w:g} is below typical_w {one.typical_w:g}"
    return ""


def predictor_of(
    model: Extension[Model] | None,
    tdp_w: Callable[[Submission], float],
    say: Callable[[str], None] = say,
    clock_s: Callable[[], float] | None = None,
) -> PowerPredictor | SafePredictor:
    """Who predicts: the model if one is chosen, else the nearest past jobs."""
    nearest = PowerPredictor(tdp_w)
    return nearest if model is None else SafePredictor(model, nearest, say, clock_s)


def in_place_of(recorded: str, given: str | None) -> str:
    """A policy with its parameters, where a model's file counts only if the caller names it (as
    ``policies.registry.in_place_of`` for policies)."""
    found = _MODEL.search(recorded)
    choice = found[1].strip() if found else ""
    if found is None or not is_file(choice):
        if given is not None:
            raise WrongUseError(f"--model {given}: the log was made without a model's file; leave it out")
        return recorded
    if given is None:
        raise WrongUseError(f"{choice} is a file, which a log does not start by itself: --model {choice}")
    return f"{recorded[: found.start(1)]}{given}{recorded[found.end(1) :]}"
