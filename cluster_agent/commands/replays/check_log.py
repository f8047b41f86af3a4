"""``clusterctl check-log``: does the scheduler decide again what an event log recorded?"""

from __future__ import annotations

import hashlib
from pathlib import Path

import click
import msgspec

from cluster_agent.errors import ClusterError
from cluster_agent.library import warm_start
from cluster_agent.library.fitting import fitted
from cluster_agent.library.given import World
from cluster_agent.prediction import models
from cluster_agent.replay.event_log import EventLog, LogMeter
from cluster_agent.replay.world_run import run, stepped
from cluster_agent.scheduler.policies import registry
from foundation.shell.plain_text import echo, say


@click.command(name="check-log")
@click.argument("log", type=click.Path())
@click.option("--trace", metavar="FILE", help="The trace, if it is no longer where it was.")
@click.option("--policy", metavar="FILE.py[:NAME]", help="The file of the policy, if it came from one.")
@click.option("--model", metavar="FILE.py[:NAME]", help="The file of the model that predicts watts, if there is one.")
def check_log(log: str, trace: str | None, policy: str | None, model: str | None) -> int:
    """Give the events of LOG (`clusterctl replay --log`) to a scheduler of the same policy and compare every decision.

    The first decision that differs is reported with its line; exit status 1.
    """
    event_log = EventLog(log)
    setting = event_log.setting
    if trace is not None:
        setting = msgspec.structs.replace(setting, trace=trace)
    _is_the_same(setting.trace, event_log)
    choice = registry.choose(models.in_place_of(registry.in_place_of(setting.policy, policy), model))
    for then, here in ((event_log.origin, choice.origin), (event_log.model, choice.model_origin)):
        if then and here and then.sha256 != here.sha256:
            say(f"{log}: made with other code ({then}); here: {here}")
    then, here = event_log.profile, choice.profile_origin
    if then and here and then.sha256 != here.sha256:
        raise ClusterError(f"{here.file}: not the profile that {log} was made with; put that back")
    given = World.of(setting)
    kind, meter = given.kind(choice), LogMeter()
    composition = choice.on(kind)
    if given.state is not None:
        start, _, result = warm_start.replayed(given, choice, kind, say)
        if event_log.state_sha256 and start.sha256 != event_log.state_sha256:
            raise ClusterError(f"{start.path}: not the state that {log} was made from; put that back")
        world = result.world
    else:
        world = fitted(given, choice, kind, say)
        if world.loop is not None:  # the submissions that it led to
            world = run(world, composition).world
    scheduler, _ = stepped(world, composition, meter)
    count = len(world.jobs)
    lines = event_log.check(scheduler, count, meter)
    echo(f"{log}: {lines} events and decisions of {count} jobs under {setting.policy}, all the same")
    return 0


def _is_the_same(trace: str, event_log: EventLog) -> None:
    try:
        sha256 = hashlib.sha256(Path(trace).read_bytes()).hexdigest()
    except OSError as error:
        raise ClusterError(f"{trace}: cannot read the trace: {error.strerror}; say where it is with --trace") from None
    if sha256 != event_log.sha256:
        raise ClusterError(f"{trace}: not the trace that {event_log.path} was made from; give that with --trace")
