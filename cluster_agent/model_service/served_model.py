"""The champion of a registry as a model that predicts (``prediction.models``), for schedulers and for people.

The choice is the folder of the model, whose champion predicts from its promotion on, or the folder of a version. What
it cannot read is an error, at which the nearest past jobs predict and an alarm says why; that nobody is champion is
none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.model_service.group_table import LEVELS
from cluster_agent.model_service.job_records import JobWords
from cluster_agent.model_service.model_registry import CARD, CHAMPION, Registry, Version
from cluster_agent.prediction.job_power import Submission
from cluster_agent.prediction.models import Ended, Model, NothingToSayError, Quantiles
from foundation.shell.extension import Extension, Origin


class ServedModel:
    """``number``: of a version; 0: the champion."""

    def __init__(self, registry: Registry, number: int) -> None:
        self._registry, self._number = registry, number
        self._words = JobWords(registry.path.parent)
        self._version: Version | None = None
        self._seen: tuple[int, int, int] | None = None

    def learn(self, ended: Sequence[Ended]) -> None:
        """Nothing: a version never changes. ``clusterctl models`` judges it, and trains the next one."""

    def predict(self, submissions: Sequence[Submission]) -> Sequence[Quantiles]:
        """By the table. ``NothingToSayError`` if there is no champion."""
        version = self._current()
        if version is None:
            raise NothingToSayError
        found = version.table.predict(self._words.submitted(submissions)).watts
        return [
            Quantiles(*(float(watts) * max(one.units, 1) for watts in row))
            for one, row in zip(submissions, found, strict=True)
        ]

    def why(self, submission: Submission) -> str:
        """What the prediction rests on."""
        version = self._current()
        if version is None:
            return f"model {self._registry.name} has no champion"
        found = version.table.predict(self._words.submitted([submission]))
        return (
            f"model {self._registry.name} version {version.card.version}: {int(found.jobs[0])} jobs of the same"
            f" {LEVELS[int(found.level[0])][1]}"
        )

    def _current(self) -> Version | None:
        """Read again if the champion's file is another one."""
        if self._number:
            self._version = self._version or self._registry.version(self._number)
            return self._version
        try:
            status = os.stat(self._registry.path / CHAMPION)
        except FileNotFoundError:
            return None
        seen = status.st_ino, status.st_mtime_ns, status.st_size
        if seen != self._seen:
            number = self._registry.champion().version
            self._version = self._registry.version(number) if number else None
            self._seen = seen
        return self._version


def find(choice: str) -> Extension[Model]:
    """The model of a folder. ``WrongUseError`` in one line if there is none that can be read."""
    path = Path(os.path.abspath(choice))
    number = int(path.name) if path.name.isdigit() else 0
    if number:
        path = path.parent
    registry = Registry(path.parent, path.name)
    try:
        if not registry.versions():
            raise WrongUseError(f"{choice}: has no version of a model; `clusterctl models train` makes one")
        current = number or registry.champion().version
        origin = None
        if current:
            version = registry.version(current)
            _ = version.table  # it may be of another kind
            origin = Origin(str(path / str(current) / CARD), version.sha256)
        JobWords(path.parent)
    except ClusterError as error:
        raise WrongUseError(str(error)) from None
    new = partial(ServedModel, registry, number)
    model = Model(registry.name, "a version of clusterctl models", new, lambda submission: new().why(submission))
    return Extension(model, origin, str(path))
