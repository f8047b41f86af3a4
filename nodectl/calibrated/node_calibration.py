"""The calibration of this node: found in its directory, checked, and handed to policies and knobs.

`nodectl calibrate run` writes ``pstates.toml`` there, with the parameters of policies that follow from its rows;
`nodectl calibrate limits` writes ``limits.toml``, with the latencies of knobs, which policies wait for. A file of
another machine, of another firmware, or one that is damaged is not used: policies then use their defaults, and a line
says so. One that is expired is used, and a line says that too. What an administrator has set always wins over what was
measured.

Parameters become part of the run's settings, so its journal has them and replays without these files.
"""

from __future__ import annotations

import datetime
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from foundation.sealed_file import SealedFileError, sealed_text
from foundation.shell.errors import plain_reason
from foundation.shell.settings import ConfigError
from nodectl.calibrated.knob_waits import knob_waits
from nodectl.calibrated.node_identity import Identity, differences, identity
from nodectl.config import Config, PolicyChoice
from nodectl.knobs.timing import Deadline, KnobLatency, checked_deadlines
from nodectl.policies import registry
from pmu.layout import Layout
from pmu.ports import Ports

TABLE: Final = "pstates.toml"
LIMITS: Final = "limits.toml"

LASTS_DAYS: Final = 180
"""Ours: fans clog and paste dries; another firmware is noticed at once."""

type_params = Mapping[str, Mapping[str, float]]
"""By policy: parameters that a calibration has measured."""


class Head(msgspec.Struct, frozen=True):
    """What the agent reads of either file; the rest is for people."""

    identity: Identity
    expires_at: str = ""
    policies: dict[str, dict[str, float]] = {}
    latency: tuple[KnobLatency, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeCalibration:
    """``lines``: what is used, what is not and why. Empty parts: nothing was measured, so defaults apply."""

    policies: type_params
    deadlines: tuple[Deadline, ...]
    lines: tuple[str, ...]


NOTHING: Final = NodeCalibration({}, (), ())


def find_calibration(config: Config, ports: Ports, layout: Layout, now: datetime.datetime) -> NodeCalibration:
    """That of the directory that the settings name. ``ConfigError`` if they name one that is none."""
    if not config.calibration:
        return NOTHING
    folder = Path(config.calibration)
    try:
        kind = folder.stat().st_mode
    except FileNotFoundError:
        return NOTHING
    except OSError as error:  # a service's user may not look there
        return NodeCalibration({}, (), (f"{folder}: not used: {error.strerror}",))
    if not stat.S_ISDIR(kind):
        raise ConfigError(f"calibration: {folder} is a file: name the directory that has {TABLE} and {LIMITS}")
    who = identity(ports, layout)
    table, of_table = _checked(folder / TABLE, who, now)
    limits, of_limits = _checked(folder / LIMITS, who, now)
    policies = table.policies if table else {}
    due = checked_deadlines(limits.latency, str(folder / LIMITS)) if limits else ()
    return NodeCalibration(policies, due, (*of_table, *of_limits))


def with_measured(config: Config, found: NodeCalibration) -> tuple[Config, list[str]]:
    """The settings with measured parameters where they set none, and for each policy a line that says which it uses.

    A parameter that the policy does not take is left out, and named: the table is of another version then.
    """
    lines: list[str] = []
    changed: dict[str, PolicyChoice] = {}
    for domain in registry.DOMAINS:
        choice = config.choice(domain)
        if choice.name == registry.NONE:
            continue
        policy = registry.find(choice.name, domain).value
        name = policy.name
        measured = {key: value for key, value in found.policies.get(name, {}).items() if key not in choice.params}
        waits, defaults = knob_waits(policy, choice.params, measured, found.deadlines)
        measured |= waits
        if not measured:
            lines += [_without(name, choice, found), *defaults]
            continue
        try:
            registry.check(choice.name, domain, {**measured, **choice.params})
        except registry.PolicyError as error:
            lines.append(f"{name} uses defaults: what was calibrated does not fit: {error}")
            continue
        changed[domain] = PolicyChoice(choice.name, {**measured, **choice.params})
        values = ", ".join(f"{key} {value:g}" for key, value in measured.items())
        lines += [f"{name} uses the calibration: {values}", *defaults]
    return _replaced(config, changed), lines


def _without(name: str, choice: PolicyChoice, found: NodeCalibration) -> str:
    if found.policies.get(name):
        return f"{name} uses settings, which are all that a calibration would decide"
    set_ = f" and on settings ({', '.join(choice.params)})" if choice.params else ""
    return f"{name} uses defaults{set_}: no calibration of this node decides its parameters"


def _replaced(config: Config, changed: Mapping[str, PolicyChoice]) -> Config:
    others = {domain: choice for domain, choice in changed.items() if domain not in ("cpu", "gpu")}
    return msgspec.structs.replace(
        config,
        cpu_policy=changed.get("cpu", config.cpu_policy),
        gpu_policy=changed.get("gpu", config.gpu_policy),
        policies={**config.policies, **others},
    )


def _checked(path: Path, who: Identity, now: datetime.datetime) -> tuple[Head | None, list[str]]:
    """The file if it applies, and what must be said of it. A file that is not there is no news."""
    try:
        path.lstat()
    except OSError:
        return None, []
    try:
        head = read_head(path)
    except SealedFileError as error:
        return None, [f"not used: {error}"]
    wrong, _ = differences(head.identity, who)
    if wrong:
        return None, [f"{path}: not used, it is of another machine or firmware: {'; '.join(wrong)}"]
    if is_expired(head.expires_at, now):
        return head, [f"{path}: expired at {head.expires_at or 'an unknown time'}: still used, measure again"]
    return head, [f"{path}: of this node, until {head.expires_at}"]


def read_head(path: Path) -> Head:
    """The part that is read here. ``SealedFileError`` in one line."""
    text = sealed_text(path)
    try:
        values: dict[str, Any] = tomllib.loads(text)
        return msgspec.convert(values, Head)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SealedFileError(f"{path}: is no TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise SealedFileError(f"{path}: is no calibration: {plain_reason(str(error))}") from None


def expiry(measured: datetime.datetime) -> str:
    """When what was measured then should be measured again."""
    return (measured + datetime.timedelta(days=LASTS_DAYS)).isoformat(timespec="seconds")


def is_expired(expires_at: str, now: datetime.datetime) -> bool:
    """Whether it should have been measured again by now; True where its date is none."""
    try:
        return datetime.datetime.fromisoformat(expires_at) < now
    except (ValueError, TypeError):
        return True
