"""``clusterctl check-log``: does the scheduler decide again what an event log recorded?"""

from __future__ import annotations

import hashlib
from pathlib import Path

import click
import msgspec

from cluster_agent.commands.replays import replay_moldable, replay_nodes, replay_processors, replay_warm
from cluster_agent.errors import ClusterError
from cluster_agent.replay.event_log import EventLog, LogMeter
from cluster_agent.scheduler.interfaces import Scheduler
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policies import registry
from cluster_agent.workloads.text_tables import has_nodes
from foundation.shell.plain_text import echo


@click.command(name="check-log")
@click.argument("log", type=click.Path())
@click.option("--trace", metavar="FILE", help="The trace, if it is no longer where it was.")
@click.option("--policy", metavar="FILE.py[:NAME]", help="The file of the policy, if it came from one.")
def check_log(log: str, trace: str | None, policy: str | None) -> int:
    """Give the events of LOG (`clusterctl replay --log`) to a scheduler of the same policy and compare every decision.

    The first decision that differs is reported with its line; exit status 1.
    """
    event_log = EventLog(log)
    setting = event_log.setting
    if trace is not None:
        setting = msgspec.structs.replace(setting, trace=trace)
    _is_the_same(setting.trace, event_log)
    choice = registry.choose(registry.in_place_of(setting.policy, policy))
    if event_log.origin and choice.origin and event_log.origin.sha256 != choice.origin.sha256:
        echo(f"{log}: made with other code ({event_log.origin}); here: {choice.origin}", to_stderr=True)
    scheduler: Scheduler
    meter = LogMeter()
    if setting.trace != setting.state and has_nodes(setting.trace):
        count, scheduler = replay_nodes.as_submitted(setting, choice)
    elif choice.has_configurations:
        of = replay_moldable.as_submitted(setting, choice.composed)
        count, (scheduler, _) = len(of.jobs), of.scheduler(choice.composed)
    elif setting.state is not None:
        warmed, result = replay_warm.replayed(setting, choice)
        if warmed.start.sha256 != event_log.state_sha256:
            raise ClusterError(f"{warmed.start.path}: not the state that {log} was made from; put that back")
        count, workload, watts = len(result.workload.jobs), result.workload, result.schedule.watts
        scheduler = NativeScheduler(
            choice.composition, workload.jobs, workload.processors, watts, warmed.caps, meter, workload.users,
            recorded=warmed.warm.recorded,
        )  # fmt: skip
    else:
        workload, watts, caps = replay_processors.as_submitted(setting, choice.composition)
        count = len(workload.jobs)
        scheduler = NativeScheduler(
            choice.composition, workload.jobs, workload.processors, watts, caps, meter, workload.users
        )
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
