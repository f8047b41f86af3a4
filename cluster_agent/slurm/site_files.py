"""What `clusterctl slurm install` writes into a site's Slurm configuration, and how all of it is taken away again.

Two scripts in a folder of ours, and a block of two lines in ``slurm.conf`` that has Slurm run them. With ``--nodes``
two more, which run on nodes, with ``--tags`` or ``--schedule`` also ``job_submit.lua``, and with the latter how often
Slurm looks at its queue. A setting that the site has already stays the site's: its own script must then call ours.
``remove`` leaves every file as it was before, byte by byte.
"""

from __future__ import annotations

import pwd
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from cluster_agent.errors import WrongUseError
from cluster_agent.slurm.config_block import FOLDER, FileChange, read_conf, text_of, with_block, without_block

MARK: Final = "nodectl: written by `clusterctl slurm install"
SCRIPTS: Final = {"PrologSlurmctld": "prolog-slurmctld", "EpilogSlurmctld": "epilog-slurmctld"}
NODE_SCRIPTS: Final = {"Prolog": "prolog-node", "Epilog": "epilog-node"}
"""They must be on every node: Slurm drains one that has no such file."""

LUA: Final = "job_submit.lua"
SCHEDULER: Final = {"sched_interval": 2, "sched_min_interval": 0, "bf_interval": 5, "batch_sched_delay": 0}
"""SchedulerParameters with which Slurm starts a job within a second of its release; with Slurm's own that takes up to
half a minute (measured: 18.6 s). By parameter, the most that is as good."""

DEFER_S: Final = 600
"""Ours: after this time without `clusterctl slurm schedule` jobs are Slurm's again."""

HOOK: Final = "/usr/lib/nodectl/nodectl-hook"
LOG: Final = "nodectl-hook.log"
RUN: Final = "/run/nodectl"
"""Of the node's agent: the folder of its lock."""

_HOOKS: Final = Path(__file__).parent / "hooks"


@dataclass(frozen=True, slots=True)
class Choices:
    """``place``: options of the hook that lead to the cluster agent."""

    wait_s: float = 5.0
    if_late: str = "start"
    place: tuple[str, ...] = ()
    with_tags: bool = False
    hook: str = HOOK
    with_nodes: bool = False
    partition: str = ""
    """Whose jobs `clusterctl slurm schedule` starts; empty: none."""
    defer_s: int = DEFER_S

    @property
    def scripts(self) -> dict[str, str]:
        """By the setting of Slurm that names each."""
        return SCRIPTS | NODE_SCRIPTS if self.with_nodes else SCRIPTS


def setting(conf: str, name: str) -> str | None:
    """The last value of a setting in the text of a ``slurm.conf``, without our block; None: it is not set."""
    found = re.findall(
        rf"^[ \t]*{name}[ \t]*=[ \t]*([^#\n]*?)[ \t]*(?:#.*)?$", without_block(conf), re.I | re.MULTILINE
    )
    return found[-1] if found else None


def read_slurm_conf(path: Path) -> str:
    """The text of ``slurm.conf``."""
    return read_conf(path, "Slurm")


class Deferred(NamedTuple):
    """What job_submit.lua does at this site: jobs of ``partition`` get a begin time that is so far ahead."""

    partition: str
    defer_s: int


def deferred(path: Path) -> Deferred | None:
    """For the ``slurm.conf`` at ``path``; None: no jobs are deferred."""
    text = text_of(path.with_name(LUA)) or ""
    found = re.search(r'^local PARTITION = "([^"\n]+)".*\nlocal DEFER = ([0-9]{1,6})$', text, re.MULTILINE)
    return Deferred(found[1], int(found[2])) if found else None


def slow_parameters(conf: str) -> list[str]:
    """Which SchedulerParameters of the site make Slurm start a released job late; empty: none."""
    given = setting(conf, "SchedulerParameters")
    if given is None:
        return [] if "\nSchedulerParameters=" in conf else [f"{name}={value}" for name, value in SCHEDULER.items()]
    known = dict(word.partition("=")[::2] for word in given.replace(" ", "").split(","))
    return [f"{name}={most}" for name, most in SCHEDULER.items() if not _is_at_most(known.get(name, ""), most)]


def _is_at_most(value: str, most: int) -> bool:
    return value.isascii() and value.isdecimal() and len(value) < 10 and int(value) <= most


def taken(conf: str, scripts: Mapping[str, str] = SCRIPTS) -> list[str]:
    """Settings that ours would need and the site has already, a line each that says what to do."""
    lines = []
    for name, script in scripts.items():
        if value := setting(conf, name):
            lines.append(f"{name} is {value} already: let it end with `exec {FOLDER}/{script}` of this folder")
    return lines


def to_install(path: Path, choices: Choices) -> list[FileChange]:
    """What changes, for the ``slurm.conf`` at ``path``. Nothing is written."""
    conf, folder = read_slurm_conf(path), path.parent / FOLDER
    words = _words(conf, choices)
    changes = []
    lines = []
    for name, script in choices.scripts.items():
        text = _filled(script, words)
        changes.append(FileChange(folder / script, text_of(folder / script), re.sub(r"  +2>>", " 2>>", text)))
        if setting(conf, name) is None:
            lines.append(f"{name}={folder / script}\n")
    if choices.with_tags or choices.partition:
        changes.append(_lua(path.with_name(LUA), _filled(LUA, words)))
        if setting(conf, "JobSubmitPlugins") is None:
            lines.append("JobSubmitPlugins=lua\n")
    if choices.partition and setting(conf, "SchedulerParameters") is None:
        lines.append(f"SchedulerParameters={','.join(f'{name}={value}' for name, value in SCHEDULER.items())}\n")
    after = with_block(conf, lines, "clusterctl slurm install; clusterctl slurm remove")
    changes.append(FileChange(path, conf, after))
    return [change for change in changes if change.before != change.after]


def to_remove(path: Path) -> list[FileChange]:
    """What changes when all of ours is taken away."""
    conf = read_slurm_conf(path)
    scripts = [path.parent / FOLDER / script for script in (SCRIPTS | NODE_SCRIPTS).values()]
    files = [*scripts, path.with_name(LUA)]
    ours = [FileChange(file, text, None) for file in files if (text := text_of(file)) is not None and MARK in text]
    changes = [FileChange(path, conf, without_block(conf)), *ours]
    return [change for change in changes if change.before != change.after]


def _words(conf: str, choices: Choices) -> dict[str, str]:
    """What the scripts have in place of these words."""
    log = Path(setting(conf, "SlurmctldLogFile") or "/var/log/slurm/slurmctld.log").with_name(LOG)
    return {
        "@HOOK@": shlex.quote(choices.hook),
        "@LOG@": shlex.quote(str(log)),
        "@WAIT@": f"{choices.wait_s:g}",
        "@IF_LATE@": choices.if_late,
        "@PLACE@": shlex.join(choices.place),
        "@RUN@": RUN,
        "@PARTITION@": choices.partition,
        "@DEFER@": str(choices.defer_s),
        "@WITH_TAGS@": "true" if choices.with_tags else "false",
        "@SLURM_USER@": str(_slurm_user(conf) if choices.partition else 0),
    }


def _filled(script: str, words: Mapping[str, str]) -> str:
    text = (_HOOKS / script).read_text()
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def _lua(path: Path, after: str) -> FileChange:
    before = text_of(path)
    if before is not None and MARK not in before:
        raise WrongUseError(f"{path}: the site has one already: take over the functions of {_HOOKS / LUA} by hand")
    return FileChange(path, before, after)


def _slurm_user(conf: str) -> int:
    """Whose edits of a job are the scheduler's."""
    name = setting(conf, "SlurmUser") or "root"
    try:
        return pwd.getpwnam(name.partition("(")[0]).pw_uid
    except KeyError:
        raise WrongUseError(
            f"SlurmUser is {name}, whom this machine does not know: run this where slurmctld runs"
        ) from None
