"""``replay``: a world under a policy. What it needs is imported when it is first called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cluster_agent.errors import WrongUseError
from cluster_agent.library.given import World
from foundation.collector import paused

if TYPE_CHECKING:
    from cluster_agent.library.fitting import Progress, Say
    from cluster_agent.library.own_policies import PolicyLike
    from cluster_agent.library.results import Result

LOGGER: Final = "cluster_agent.library"
"""Gets what is found on the way, as warnings, unless ``replay`` is given ``say``."""


def replay(
    world: World,
    policy_: PolicyLike = "easy",
    *,
    progress: Progress | None = None,
    say: Say | None = None,
    at_s: Sequence[int] = (),
) -> Result:
    """Schedule the jobs of ``world`` again under a policy (see ``policy``). Equal inputs give equal results.

    ``progress`` is called from time to time with how many jobs have ended, and of how many. ``say`` gets sentences
    about what was found; without it they are warnings of the logger ``cluster_agent.library``. ``at_s``: seconds at
    which ``Result.write_state`` can take the jobs.

    ``ClusterError`` in one sentence for inputs that cannot be, and when no job was ever started. An exception that a
    function of the policy or ``progress`` raises ends the replay, and so does Ctrl-C, within about a tenth of a second.
    """
    with paused():
        from cluster_agent.library.fitting import fitted, of_all
        from cluster_agent.library.own_policies import policy
        from cluster_agent.library.remarks import check_started, remarks_on
        from cluster_agent.library.results import Result, check_files
        from cluster_agent.replay import world_run

    if not isinstance(world, World):
        raise WrongUseError(f"replay: give a World, such as World(jobs, machine=512), not {type(world).__name__}")
    choice, say = policy(policy_), say or _log
    kind = world.kind(choice)
    check_files(choice, kind, world)
    start = None
    if world.state is None:
        fit, composition = fitted(world, choice, kind, say), choice.on(kind)
        result = world_run.run(fit, composition, of_all(progress, len(fit.jobs)), at_s)
    else:
        from cluster_agent.library import warm_start  # only here: a short replay is as long as its imports

        start, fit, result = warm_start.replayed(world, choice, kind, say, progress, at_s)
    remarks = remarks_on(choice, kind, fit, result)
    for remark in remarks:
        say(remark)
    check_started(choice, fit, result, world.plan_from is not None)
    left = result if start is None else result.since(start.state.t0_s)
    fields = {name: getattr(left, name) for name in world_run.Result.__struct_fields__}
    return Result(**fields, given=world, policy=choice, whole=result, start=start, remarks=tuple(remarks))


def _log(sentence: str) -> None:
    import logging  # only here: most replays say nothing

    logging.getLogger(LOGGER).warning("%s", sentence)
