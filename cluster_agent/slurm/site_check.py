"""What a site's Slurm lacks to work next to the cluster agent: one line each, with what to do."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

from cluster_agent.errors import ClusterError
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.serve.people_protocol import ListNodes, NotifyEnd
from cluster_agent.slurm.config_block import FOLDER
from cluster_agent.slurm.queue_source import REST
from cluster_agent.slurm.site_files import LUA, SCRIPTS, deferred, read_slurm_conf, setting, slow_parameters, taken
from foundation.shell.errors import UsageError
from foundation.shell.names import expanded, first_of, with_domain

NAMED: Final = 5
"""Ours: how many nodes a line names."""

_PARTITION: Final = re.compile(r"^[ \t]*PartitionName[ \t]*=[ \t]*(\S+)(.*)$", re.I | re.MULTILINE)


def lacking(path: Path, hook: str, place: Place) -> list[str]:
    """For the ``slurm.conf`` at ``path``; empty: all is there. ``WrongUseError`` if that cannot be read."""
    conf = read_slurm_conf(path)
    lines = [*taken(conf)]
    lines += [
        f"{name} is not set: `clusterctl slurm install`"
        for name, script in SCRIPTS.items()
        if setting(conf, name) is None and f"{name}={path.parent / FOLDER / script}" not in conf
    ]
    if not os.access(hook, os.X_OK):
        lines.append(f"{hook} is no program: install the package clusterctl on this machine")
    if not REST.is_socket() and not shutil.which("squeue"):
        lines.append(f"nobody listens at {REST}, and there is no squeue: `slurm follow` can ask neither")
    if not (setting(conf, "AccountingStorageType") or "").endswith("slurmdbd"):
        lines.append("AccountingStorageType is not slurmdbd: joules cannot be written into Slurm's job records")
    return lines + _of_schedule(path, conf) + of_agent(slurm_nodes(conf), place, "Slurm", "slurm-check")


def _of_schedule(path: Path, conf: str) -> list[str]:
    """Where `clusterctl slurm schedule` starts the jobs of a partition, what that needs."""
    given = deferred(path)
    if given is None:
        return []
    lines = []
    if not {"lua", "job_submit/lua"} & set((_in_force(conf, "JobSubmitPlugins") or "").replace(" ", "").split(",")):
        lines.append(f"JobSubmitPlugins has no lua: Slurm does not run {path.with_name(LUA)}, and defers no job")
    if slow := slow_parameters(conf):
        lines.append(f"SchedulerParameters: add {','.join(slow)}: a released job starts late without")
    partitions = dict(_PARTITION.findall(conf))
    if given.partition not in partitions:
        lines.append(f"there is no partition {given.partition}, whose jobs {LUA} defers")
    elif "oversubscribe=exclusive" not in partitions[given.partition].lower():
        lines.append(f"partition {given.partition} is not OverSubscribe=EXCLUSIVE: the schedule counts whole nodes")
    return lines


def _in_force(conf: str, name: str) -> str | None:
    """The site's, or that of our block."""
    found = re.findall(rf"^{name}=(.*)$", conf, re.MULTILINE)
    return setting(conf, name) or (found[-1] if found else None)


def of_agent(theirs: set[str], place: Place, manager: str, cluster: str) -> list[str]:
    """Whether the cluster agent lets this user notify, and whether both know the same nodes. ``theirs``: the manager's;
    ``cluster``: a name that no notice has."""
    try:
        ask(place, NotifyEnd("none", cluster))  # of a job that nobody has, which changes nothing
    except ClusterError as error:
        return [f"{error} (`notifiers` in cluster.toml, or a key of role notifier)"]
    try:
        ours = {row.name for row in ask(place, ListNodes())}
    except ClusterError:  # a notifier's key may not look
        return []
    lines = [
        f"the agent of {node} calls itself {called}: set [cluster] name = {node!r} in its settings"
        for node, called in list(with_domain(sorted(theirs - ours), ours - theirs).items())[:1]
    ]
    if theirs and (alone := sorted(ours - theirs)):
        lines.append(f"not nodes of this {manager}: {first_of(alone, NAMED)}: jobs there are notified by nobody")
    if alone := sorted(theirs - ours):
        lines.append(
            f"nodes of {manager} without an agent: {first_of(alone, NAMED)}: their jobs start uncapped and are not "
            "counted"
        )
    return lines


def slurm_nodes(conf: str) -> set[str]:
    """The names in the ``NodeName`` lines; lists that are none are left out, as Slurm itself will complain."""
    found: set[str] = set()
    for names in re.findall(r"^[ \t]*NodeName[ \t]*=[ \t]*(\S+)", conf, re.I | re.MULTILINE):
        try:
            found.update(expanded(names))
        except UsageError:
            continue
    return found - {"DEFAULT"}
