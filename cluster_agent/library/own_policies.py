"""Policies: those that ship, of a file or a package, or one's own in a notebook, of functions and names of phases."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

import msgspec

from cluster_agent.errors import WrongUseError
from foundation.shell.errors import nearest

if TYPE_CHECKING:  # a program's start is as long as its imports
    import numpy.typing as npt

    from cluster_agent.scheduler.policies.api import Policy as Exported
    from cluster_agent.scheduler.policies.registry import Choice
    from cluster_agent.scheduler.policy_phases import Composition, Order, Queue
    from foundation.shell.extension import Origin

OF_WATTS: Final = ("react", "idle")
"""Phases that are functions of ``Power``."""


class Ordering(Protocol):
    """An object with an order, and perhaps other phases, as methods and attributes."""

    def order(self, queue: Queue, now_s: int) -> npt.NDArray[Any]:
        """As ``Order``."""
        ...


PolicyLike: TypeAlias = "str | Choice | Composition | Exported | Order | Ordering"
"""What ``policy`` takes: a name with parameters or a file, as the command does; a policy; phases; what a policy file
exports; a function, which is an order; or an object that has phases as attributes and methods."""


def policy(base: PolicyLike = "easy", *, name: str | None = None, **phases: Any) -> Choice:
    """A policy for ``replay``: ``base`` with the ``phases`` replaced.

    ``policy("easy-sjbf:estimate=mean2")``, ``policy(order, backfill="conservative")`` with
    ``order(queue, now_s)``, ``policy("powercap:mode=mix", order=order)``, ``policy(Mine())``. The phases are the fields
    of ``Composition``, and ``react`` and ``idle`` of its ``power``. An order of one's own stands in place of any that
    the base has. ``name``: in results; that of the function or class if left out.

    ``WrongUseError`` for a name, phase or value that does not exist, or for phases that do not go together.
    """
    chosen, known = _chosen(base), _phases()
    if not phases and name is None:
        return chosen
    for phase in phases:
        if phase not in known:
            raise WrongUseError(f"--policy {chosen.text}: there is no phase {phase!r}{nearest(phase, known)}")
    called = name or "+".join([chosen.policy.name, *(_name(one) for one in phases.values() if callable(one))])
    shipped = chosen.policy

    def compose(params: Any) -> Composition:
        return _with(shipped.compose(params), phases)

    def on_processors(params: Any) -> Composition:
        return _with(cast("Callable[[Any], Composition]", shipped.on_processors)(params), phases)

    alike = None if shipped.on_processors is None else on_processors
    replaced = msgspec.structs.replace(shipped, name=called, compose=compose, on_processors=alike)
    origin = _origin(called, chosen.origin, chosen.text, *phases.items())
    return type(chosen)(called, replaced, chosen.params, _composed(called, lambda: compose(chosen.params)), origin)


def _phases() -> tuple[str, ...]:
    from cluster_agent.scheduler.policy_phases import Composition  # as above

    return (*Composition.__struct_fields__, *OF_WATTS)


def _chosen(base: PolicyLike) -> Choice:
    from cluster_agent.scheduler.policies import registry  # as above
    from cluster_agent.scheduler.policies.api import NoParams
    from cluster_agent.scheduler.policies.api import Policy as Exported
    from cluster_agent.scheduler.policies.registry import Choice
    from cluster_agent.scheduler.policy_phases import Composition

    if isinstance(base, Choice):
        return base
    if isinstance(base, str):
        return registry.choose(base)
    if isinstance(base, Exported):
        params = _composed(base.name, base.params)
        composed = _composed(base.name, lambda: base.compose(params))
        return Choice(base.name, base, params, composed, _origin(base.name, base.compose))
    called = _name(base)
    if isinstance(base, Composition):
        called, of_phases = "composition", lambda: base
    elif inspect.isroutine(base):
        of_phases = lambda: Composition(order=cast("Order", base), backfill="easy")  # noqa: E731
    else:
        found = {phase: getattr(base, phase) for phase in _phases() if hasattr(base, phase)}
        if callable(base):
            found["order"] = base
        if not found:
            raise WrongUseError(
                f"--policy {called}: give a name, a function order(queue, now_s), a Composition, or an object that has"
                f" one of the phases {', '.join(_phases())}"
            )
        of_phases = lambda: _with(Composition(backfill="easy"), found)  # noqa: E731
    composed = _composed(called, of_phases)
    exported = Exported(called, "", "written where it is used", NoParams, lambda params: composed)
    return Choice(called, exported, NoParams(), composed, _origin(called, base))


def _with(composition: Composition, phases: dict[str, Any]) -> Composition:
    """With these phases in place of its own."""
    from cluster_agent.scheduler.power_phases import Power  # as above

    own = {phase: value for phase, value in phases.items() if phase not in OF_WATTS}
    if own.keys() & {"order", "priority", "score"}:
        own = {"order": None, "priority": None, "score": None} | own
    of_watts = {phase: value for phase, value in phases.items() if phase in OF_WATTS}
    if of_watts:
        power = own.get("power", composition.power) or Power()
        own["power"] = msgspec.structs.replace(power, **of_watts)
    return msgspec.structs.replace(composition, **own)


def _composed(called: str, compose: Callable[[], Any]) -> Any:
    try:
        return compose()
    except (TypeError, ValueError) as error:
        raise WrongUseError(f"--policy {called}: {error}") from None


def _name(value: object) -> str:
    name: str = getattr(value, "__name__", type(value).__name__)
    return "order" if name == "<lambda>" else name


def _origin(called: str, *made_of: object) -> Origin:
    """Its mark among others of its name, in a manifest: the SHA-256 of its source, as far as there is one."""
    import hashlib  # as above

    from foundation.shell.extension import Origin

    digest = hashlib.sha256()
    for part in made_of:
        for one in part if isinstance(part, tuple) else (part,):
            digest.update(_source(one).encode())
    return Origin(f"({called})", digest.hexdigest())


def _source(value: object) -> str:
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, msgspec.Struct):
        return "".join(map(_source, msgspec.structs.astuple(value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "".join(_source(getattr(value, field.name)) for field in dataclasses.fields(value))
    try:
        is_code = inspect.isroutine(value) or isinstance(value, type)
        return inspect.getsource(cast(Any, value if is_code else type(value)))
    except (OSError, TypeError):  # typed at a prompt, or built in
        return _name(value)
