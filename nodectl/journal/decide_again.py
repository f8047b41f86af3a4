"""Deciding a journal again, and finding where today's decisions differ from the recorded ones.

Policies are pure, so the same sweeps through the same code give the same bytes. A difference therefore means that the
code has changed, that a policy is not pure after all, or that the arithmetic differs: numpy picks its routines by
processor, and a sum taken in another order may end in another bit.

Each run in the journal starts from the states at its first keyframe; from there on states are carried as in the agent,
and later keyframes of the run are compared with them too.

A policy of a file is run again only if the caller names the file: a journal is data, and must not decide what is run.
Other code than was recorded, of a file or of an installed package, is replayed all the same, since where the decisions
begin to differ is what its author asks; the report says that it is other code.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from foundation.shell.errors import NodectlError, plain_reason
from foundation.shell.extension import is_file
from nodectl.config import Config
from nodectl.decide.decider import Decider
from nodectl.decide.decisions import Decisions, PolicyDecision
from nodectl.journal import Journal, JournalError, Keyframe, Loss, Record
from nodectl.journal.state import decode_state, encode_state
from nodectl.policies import registry
from nodectl.policies.api import Request
from pmu.decode import decode

ODD_RECORDS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What policies raise whose state, layout or settings fit no policy: a journal comes from elsewhere."""

_REQUEST_FIELDS = ("target", "reason", "loss", "saved_w")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a replay came to something else. ``at_s`` since the run's first record here."""

    run: str
    record: int
    at_s: float
    field: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        where = f"record {self.record} ({self.at_s:.3f} s into run {self.run[:8]})"
        return f"{where}, {self.field}: recorded {self.recorded}, replayed {self.replayed}"


@dataclass(slots=True)
class ReplayReport:
    """What a replay found. ``decided`` counts the records in which policies decided."""

    records: int = 0
    decided: int = 0
    differing: int = 0
    first: Difference | None = None
    policies: tuple[str, ...] = ()
    recorded_s: float = 0.0
    replay_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    loss: Loss = field(default_factory=Loss)

    @property
    def is_equal(self) -> bool:
        """Every decision came out byte for byte."""
        return self.differing == 0

    @property
    def speed(self) -> float:
        """Recorded time over replay time; 0 for an empty journal."""
        return self.recorded_s / self.replay_s if self.replay_s > 0 else 0.0


def replay(
    journal: Journal,
    progress: Callable[[Record], None] = lambda record: None,
    files: Mapping[str, str] = MappingProxyType({}),
) -> ReplayReport:
    """Decide every recorded tick again and compare. ``JournalError`` if a recorded run cannot be set up here.

    ``files``: by domain of knobs ("cpu"), the file of the policy there, ``FILE.py[:NAME]``, if it came from one.
    ``PolicyError`` if that cannot be used.
    """
    for domain, file in files.items():
        registry.find(file, domain)
    report = ReplayReport()
    others: list[str] = []
    begin = time.perf_counter()
    run: _Run | None = None
    for record in journal:
        if run is None or not run.continues_with(record):
            run = _Run(record, files, others)
        try:
            difference = run.next(record)
        except JournalError as error:
            raise JournalError(f"{journal.place}: {error}") from error
        if record.has_decided and record.follows_keyframe:
            names = (policy.name for policy in record.keyframe.policies)
            report.policies = tuple(dict.fromkeys((*report.policies, *names)))
        report.records += 1
        report.decided += record.has_decided
        report.recorded_s += run.elapsed_s
        if difference:
            report.differing += 1
            report.first = report.first or difference
        progress(record)
    report.replay_s = time.perf_counter() - begin
    report.problems, report.loss = [*dict.fromkeys(others), *journal.problems], journal.loss
    return report


class _Run:
    """One unbroken stretch of a recorded run, decided again."""

    def __init__(self, first: Record, files: Mapping[str, str], others: list[str]) -> None:
        """``others`` gets a line for each policy whose code is not what was recorded."""
        self._files, self._others = files, others
        self._run = first.keyframe.run
        self._start_ns = first.raw.time_ns
        self._next = first.sequence
        self._decider: Decider | None = None
        self.elapsed_s = 0.0

    def continues_with(self, record: Record) -> bool:
        """Is this the record that came next in the run, with none lost between?"""
        return record.keyframe.run == self._run and record.sequence == self._next

    def next(self, record: Record) -> Difference | None:
        """Decide one record again; the first field that differs, if any."""
        self._next += 1
        previous_ns = record.previous.time_ns if record.previous else record.raw.time_ns
        self.elapsed_s = (record.raw.time_ns - previous_ns) / 1e9
        if not record.has_decided or record.previous is None:
            return None
        keyframe = record.keyframe
        if self._decider is None:
            self._decider = _decider(keyframe, self._files)
            self._others += _others(keyframe, self._decider)
        try:
            decisions = self._decider.decide(decode(keyframe.layout, record.previous, record.raw), record.cap)
            found = next(_differences(record, decisions), None)
        except (NodectlError, *ODD_RECORDS) as error:
            where = f"record {record.sequence} of run {self._run[:8]}"
            what = str(error) if isinstance(error, NodectlError) else f"{type(error).__name__}: {error}"
            raise JournalError(f"{where} cannot be decided again: {what}") from error
        if found is None:
            return None
        return Difference(self._run, record.sequence, (record.raw.time_ns - self._start_ns) / 1e9, *found)


class _AsConfigured(msgspec.Struct):
    """Parameters come from the recorded settings, not from here."""


def _decider(keyframe: Keyframe, files: Mapping[str, str]) -> Decider:
    """The decider of a recorded run, as it was at a keyframe. Whatever it raises becomes one ``JournalError``."""
    try:
        config = _with_files(msgspec.convert(keyframe.config, Config), files)
        # imports the policies' modules, which the states' classes come from
        added = Decider(keyframe.layout, config).extensions
        modules = [
            name
            for name in sys.modules
            if name.startswith(("nodectl.", "pmu.")) or any(found.owns(name) for found in added)
        ]
        resume = [
            PolicyDecision(policy.name, _AsConfigured(), decode_state(policy.state, modules), Request.free(policy.size))
            for policy in keyframe.policies
        ]
        return Decider(keyframe.layout, config, resume)
    except (NodectlError, *ODD_RECORDS) as error:  # msgspec's are ValueErrors, of states TypeErrors
        where = f"run {keyframe.run[:8]} (nodectl {keyframe.version})"
        raise JournalError(f"{where} cannot be set up: {plain_reason(str(error))}") from error


def _with_files(config: Config, files: Mapping[str, str]) -> Config:
    """The settings with the files that the caller names in place of those recorded, in every domain of knobs."""
    chosen = {}
    for domain in registry.DOMAINS:
        choice, file = config.choice(domain), files.get(domain)
        option = f"--{domain}-policy {{}}" if domain in ("cpu", "gpu") else f"--policy {domain}={{}}"
        if is_file(choice.name) and file is None:
            raise JournalError(
                "it was recorded with a policy of a file, which a journal does not start by itself:"
                f" {option.format(choice.name)}"
            )
        if not is_file(choice.name) and file is not None:
            raise JournalError(f"it was recorded with {choice.name}, which is no file: leave out {option.format(file)}")
        if file is not None:
            chosen[domain] = msgspec.structs.replace(choice, name=file)
    sides = {f"{side}_policy": chosen.pop(side) for side in ("cpu", "gpu") if side in chosen}
    return msgspec.structs.replace(config, **sides, policies={**config.policies, **chosen})


def _others(keyframe: Keyframe, decider: Decider) -> list[str]:
    """A line for each policy whose code is not what the run was recorded with."""
    now = decider.origins
    return [
        f"{name}: run {keyframe.run[:8]} was recorded with other code ({recorded.origin}); here: {now[name]}"
        for name, recorded in keyframe.added.items()
        if name in now and now[name].sha256 != recorded.origin.sha256
    ]


def _differences(record: Record, decisions: Decisions) -> Iterator[tuple[str, str, str]]:
    """Fields that differ: name, recorded and replayed value."""
    keyframe = record.keyframe
    recorded_names = [policy.name for policy in keyframe.policies]
    replayed_names = [decision.policy for decision in decisions.policies]
    if recorded_names != replayed_names:
        yield "policies", ", ".join(recorded_names), ", ".join(replayed_names)
        return
    if keyframe.knobs != decisions.knobs:
        yield "knobs", f"{len(keyframe.knobs)} knobs", f"{len(decisions.knobs)} others"
        return
    if record.follows_keyframe:
        for policy, decision in zip(keyframe.policies, decisions.policies, strict=True):
            if policy.state != _as_recorded(decision.state):
                yield f"{policy.name}.state", "the state in the keyframe", "another state"
    for name, recorded, decision in zip(recorded_names, record.requests, decisions.policies, strict=True):
        for part in _REQUEST_FIELDS:
            yield from _difference(f"{name}.{part}", getattr(recorded, part), getattr(decision.request, part))
    yield from _difference("values", record.values, decisions.values, keyframe.knobs)
    yield from _difference("bound", record.bound, decisions.bound, keyframe.knobs)


def _difference(
    name: str, recorded: npt.NDArray[Any], replayed: npt.NDArray[Any], rows: tuple[str, ...] = ()
) -> Iterator[tuple[str, str, str]]:
    if recorded.dtype != replayed.dtype or recorded.shape != replayed.shape:
        yield name, f"{recorded.dtype}{recorded.shape}", f"{replayed.dtype}{replayed.shape}"
    elif recorded.tobytes() != replayed.tobytes():
        bits = f"u{recorded.itemsize}"
        is_other = np.ascontiguousarray(recorded).view(bits) != np.ascontiguousarray(replayed).view(bits)
        at = int(np.flatnonzero(is_other)[0])
        yield f"{name}[{rows[at] if rows else at}]", repr(recorded[at].item()), repr(replayed[at].item())


def _as_recorded(state: Any) -> Any:
    """A state as it looks after a trip through a keyframe."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(encode_state(state)))
