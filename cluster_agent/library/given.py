"""What a replay is given: jobs, a machine, caps and the rest, as files, numbers or columns, for any policy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from cluster_agent.cluster import Machine, load_machine
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.policy_phases import shares_nodes
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.switches import OPTIONS as SWITCHES

if TYPE_CHECKING:  # a short replay is as long as its imports
    from cluster_agent.replay.event_log import Setting
    from cluster_agent.scheduler.job_columns import Bools, Jobs
    from cluster_agent.scheduler.policies.registry import Choice
    from cluster_agent.scheduler.unlike_nodes.shared_nodes import Shared
    from cluster_agent.scheduler.world import Kind
    from cluster_agent.workloads.node_trace import NodeTrace
    from cluster_agent.workloads.swf import Log

Given: TypeAlias = "str | os.PathLike[str] | Jobs | Mapping[str, Any] | Iterable[Mapping[str, Any]] | Any"
"""Jobs: a file (SWF, sacct, a table of Eurora); columns by name (a dictionary of arrays, a pandas DataFrame, an Arrow
table, ``Jobs``); or rows by name, of a generator, too. The last type is for DataFrames and tables, whose packages need
not be installed."""

MOST_NODES: Final = 2**20
"""Ours: that jobs share."""

TEXTS: Final = ("instance", "configurations", "closed_loop", "state", "plan_from", "pairs", *SWITCHES)

COLUMNS_PATH = "columns"
"""What stands for the path of jobs that are in no file."""


@dataclass(frozen=True, eq=False)
class World:
    """The inputs of a replay. Each argument takes what the option of ``clusterctl replay`` of that name takes, and
    objects where they are named here. Files and columns are read once, when they are first needed.

    ``jobs``       see ``Given``; with ``state`` they may be left out
    ``machine``    processors, or the name or file of a machine, or a ``Machine``; a log's MaxProcs if left out
    ``cap``        watts of the whole machine, a file of caps, or a ``PowerCap``
    ``job_watts``  watts of single jobs: a file, ``generated``, or a mapping from the log's number of a job to watts
    ``seed``       of ``closed_loop`` and ``failures``, 0 or more; nothing else draws
    ``state``      a file of a machine's jobs from which the replay starts (a warm start)
    ``plan_from``  ``plan.jsonl`` of an earlier replay, to repeat its plan
    ``limits``     what users and queues may run at once, rules separated by blanks
    ``partitions`` processors of the log's partitions or queues
    ``memory``     GiB of a processor, or ``machine``: memory of a log of processors counts
    ``failures``   a file of nodes that fail, or mtbf=HOURS,repair=HOURS,...
    ``reservations``  a file of processors that are kept for some jobs in some hours
    ``pairs``      a file of speeds next to partners, for a table of jobs that may share nodes
    ``windows``    in which hours of the week jobs of a queue may run, such as ``2=18:00-08:00,sat-sun``
    ``best_effort``  the log's queues whose jobs run on what no other job can use, such as ``queue=2``
    ``strict``     whether the first job that would be dropped or corrected is an error

    ``ClusterError`` in one sentence, here or when it is replayed; in that sentence ``--machine`` is ``machine``.
    """

    jobs: Given | None = None
    machine: str | int | Machine | None = None
    cap: str | float | PowerCap | None = None
    instance: str | None = None
    configurations: str | None = None
    job_watts: str | Mapping[int, float] | None = None
    closed_loop: str | None = None
    seed: int = 0
    state: str | None = None
    plan_from: str | None = None
    limits: str | None = None
    partitions: str | None = None
    memory: str | None = None
    failures: str | None = None
    reservations: str | None = None
    pairs: str | None = None
    windows: str | None = None
    best_effort: str | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        self._simplify()
        self._check_texts()
        self._check_switches()
        if self.jobs is None and self.state is None:
            raise WrongUseError("give a TRACE, or --state FILE to replay the jobs of a state alone")
        if isinstance(self.machine, bool) or not isinstance(self.machine, str | int | Machine | None):
            raise WrongUseError(f"--machine {self.machine!r}: give a number of processors, a name, a file or a Machine")
        if isinstance(self.cap, bool) or not isinstance(self.cap, str | int | float | PowerCap | None):
            raise WrongUseError(f"--cap {self.cap!r}: give watts, a file or a PowerCap")
        if isinstance(self.cap, float) and isnan(self.cap):
            raise WrongUseError("--cap nan: give watts above 0, or a file")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise WrongUseError(f"--seed {self.seed!r}: give a whole number from 0")

    def _check_switches(self) -> None:
        given = {option: getattr(self, name) for name, option in SWITCHES.items()}
        if empty := [option for option, text in given.items() if text is not None and not text.strip()]:
            raise WrongUseError(f"{empty[0]} is empty: leave it out")

    def _simplify(self) -> None:
        """Paths as texts, and numbers of NumPy as numbers."""
        for name in ("jobs", "machine", "cap", "configurations", "job_watts", "state", "plan_from"):
            if isinstance(value := getattr(self, name), os.PathLike):
                object.__setattr__(self, name, os.fspath(value))
        for name in ("machine", "cap", "seed"):
            if getattr(value := getattr(self, name), "ndim", 1) == 0:  # a number of NumPy's
                object.__setattr__(self, name, value.item())

    def _check_texts(self) -> None:
        for name in TEXTS:
            if not isinstance(value := getattr(self, name), str | None):
                raise WrongUseError(f"--{name.replace('_', '-')} {value!r}: give a text")
        if not isinstance(self.job_watts, str | None) and not hasattr(self.job_watts, "items"):  # as a Series has
            raise WrongUseError(f"--job-watts {self.job_watts!r:.60}: give a file, `generated`, or watts by number")

    @property
    def has_switches(self) -> bool:
        """Whether it has limits, partitions, memory, failures, reservations, windows of queues or best-effort jobs."""
        return self.best_effort_jobs is not None or any(getattr(self, name) is not None for name in SWITCHES)

    @property
    def path(self) -> str:
        """The trace in messages."""
        found = self.state if self.jobs is None else self.jobs
        return found if isinstance(found, str) else COLUMNS_PATH

    @property
    def in_files(self) -> bool:
        """Whether the log of a replay can name all that it was made from."""
        objects = self.machine, self.cap, self.job_watts
        return self.path != COLUMNS_PATH and not any(isinstance(one, Machine | tuple | Mapping) for one in objects)

    @property
    def _is_alone(self) -> bool:
        """Whether all jobs are those of the state."""
        return self.jobs is None or (isinstance(self.jobs, str) and self.jobs == self.state)

    @property
    def on_nodes(self) -> bool:
        """Whether the trace says what its jobs take of nodes."""
        if self._is_alone:
            return False
        if isinstance(self.jobs, str):
            from cluster_agent.workloads.text_tables import has_nodes  # as above

            return self.clusters is not None or has_nodes(self.jobs)
        return "units" in self._columns

    @property
    def is_eurora(self) -> bool:
        """Whether it is one of Eurora's tables."""
        from cluster_agent.workloads.text_tables import is_eurora  # as above

        return isinstance(self.jobs, str) and is_eurora(self.jobs)

    @cached_property
    def clusters(self) -> Machine | None:
        """The machine of the log, where a table of clusters is next to it and no other machine is given."""
        if not isinstance(self.jobs, str) or self.machine is not None:
            return None
        from cluster_agent.workloads.clusters.cluster_table import read_clusters, table_of  # as above

        table = table_of(self.jobs)
        return None if table is None else read_clusters(table)

    def take_jobs_of(self, other: World) -> None:
        """Use the jobs that ``other`` has read from the same file, instance and strictness, if it has read any."""
        if (self.jobs, self.instance, self.strict) == (other.jobs, other.instance, other.strict):
            self.__dict__.update({name: other.__dict__[name] for name in ("log", "table") if name in other.__dict__})

    @classmethod
    def of(cls, setting: Setting) -> World:
        """What ``setting`` has in words, without its policy."""
        given = {name: getattr(setting, name) for name in setting.__struct_fields__ if name not in ("trace", "policy")}
        return cls(setting.trace or None, **given)

    def setting(self, policy: str) -> Setting:
        """The same in words, for the files of a replay."""
        from cluster_agent.replay.event_log import Setting  # as above

        texts = {name: getattr(self, name) for name in Setting.__struct_fields__ if name not in ("trace", "policy")}
        of_objects = {"machine": _words(self.machine), "cap": _words(self.cap), "job_watts": _words(self.job_watts)}
        return Setting(**texts | of_objects, trace=self.path, policy=policy)

    def load_machine(self) -> Machine | None:
        """The machine, if more is given than a number of processors."""
        if isinstance(self.machine, Machine):
            return self.machine
        if self.machine is None:
            return None if self._is_alone else self.clusters
        return None if self.processors is not None else self._machine_of_file

    @cached_property
    def _machine_of_file(self) -> Machine:
        return load_machine(str(self.machine))

    @property
    def processors(self) -> str | None:
        """``machine`` as a number of processors, if it is one."""
        text = _words(self.machine)
        return text if text is not None and not isinstance(self.machine, Machine) and text.isdecimal() else None

    @cached_property
    def log(self) -> Log | None:
        """The log of processors; None: the jobs of a state alone."""
        if self._is_alone:
            return None
        if isinstance(self.jobs, str):
            from cluster_agent.workloads.swf import read_swf  # as above

            return read_swf(self.jobs)
        from cluster_agent.library.given_columns import log_of  # as above

        return log_of(self._columns)

    @cached_property
    def table(self) -> NodeTrace:
        """The jobs of a trace with nodes."""
        if not isinstance(self.jobs, str):
            from cluster_agent.library.given_columns import trace_of  # as above

            return trace_of(self._columns, self.strict)
        if self.pairs is not None:
            return self.table_and_shares[0]
        if self.is_eurora:
            from cluster_agent.workloads.eurora import read_jobs  # as above

            return read_jobs(self.jobs, self.instance, self.strict)
        if self.clusters is not None:
            from cluster_agent.workloads.clusters.node_requests import read_requests  # as above

            return read_requests(self.jobs, self.clusters, self.strict)
        from cluster_agent.workloads.sacct import read_sacct  # as above

        return read_sacct(self.jobs, self.strict)

    @cached_property
    def table_and_shares(self) -> tuple[NodeTrace, Shared]:
        """The jobs of a table that may share nodes."""
        from cluster_agent.library.shared_trace import shared_trace  # as above

        assert isinstance(self.jobs, str)
        assert self.pairs is not None
        return shared_trace(self.jobs, self.pairs, self.strict)

    @cached_property
    def _columns(self) -> dict[str, Any]:
        from cluster_agent.library.given_columns import jobs_given  # as above

        return jobs_given(self.jobs)

    def watts_of_jobs(self) -> str | Mapping[int, float] | None:
        """``job_watts``, or the column of the jobs."""
        if self.job_watts is not None or isinstance(self.jobs, str | None) or self.on_nodes:
            return self.job_watts
        from cluster_agent.library.given_columns import watts_given  # as above

        return watts_given(self._columns)

    @property
    def best_effort_jobs(self) -> Bools | None:
        """The column of a log from memory; None: it has none, or is a file."""
        if self._is_alone or isinstance(self.jobs, str) or self.on_nodes:
            return None
        from cluster_agent.library.given_columns import best_effort_given  # as above

        return best_effort_given(self._columns)

    def kind(self, choice: Choice) -> Kind:
        """Of the resources, by the trace and the policy; ``WrongUseError`` for arguments that do not go with it."""
        name, on_nodes = choice.policy.name, self.on_nodes
        self._check_shares(choice)
        if choice.has_configurations and not on_nodes:
            given = {"--instance": self.instance, "--job-watts": self.job_watts}
            given |= {option: getattr(self, name) for name, option in SWITCHES.items()}
            _refuse(given, f"not with {choice.text}, which chooses configurations; leave it out")
            return "configurations"
        fix = "leave it out, or choose rmap or moldable"
        _refuse({"--configurations": self.configurations}, f"{name} runs jobs as requested; {fix}")
        if on_nodes:
            _refuse({"--job-watts": self.job_watts}, "a trace with nodes has its own; leave it out")
            return "nodes"
        _refuse({"--instance": self.instance}, "only for traces with nodes; leave it out for a log of processors")
        return "processors"

    def _check_shares(self, choice: Choice) -> None:
        """``WrongUseError`` for shares without what they need, or with what they do not go with."""
        is_shared, plans = self.is_shared, shares_nodes(choice.composed.plan)
        if plans and not is_shared:
            why = "it is for a table of jobs that share nodes (docs/shared-nodes.md)"
            raise WrongUseError(f"--policy {choice.text}: {why}")
        if is_shared and not plans:
            raise WrongUseError(f"--policy {choice.text}: {self.path} has jobs that share nodes; choose shared")
        if is_shared and (self.pairs is None or self.machine is None):
            missing = "--pairs FILE.csv" if self.pairs is None else "--machine NODES"
            raise WrongUseError(f"{self.path}: its jobs share nodes; give {missing}, too")
        if not is_shared:
            _refuse({"--pairs": self.pairs}, "only for a table of jobs that share nodes; leave it out")
            return
        names = ("cap", "instance", "job_watts", "closed_loop", "state", *SWITCHES)
        given = {f"--{name.replace('_', '-')}": getattr(self, name) for name in names}
        _refuse(given, "not with jobs that share nodes; leave it out")
        if self.processors is None or not 0 < int(self.processors) <= MOST_NODES:
            raise WrongUseError(f"--machine {_words(self.machine)}: give a number of nodes, or of cards")

    @property
    def is_shared(self) -> bool:
        """Whether its jobs may share nodes."""
        from cluster_agent.workloads.text_tables import is_shared  # as above

        return isinstance(self.jobs, str) and not self._is_alone and is_shared(self.jobs)


def _refuse(given: Mapping[str, object], why: str) -> None:
    for option, value in given.items():
        if value is not None:
            raise WrongUseError(f"{option} {_words(value)}: {why}")


def _words(value: object) -> str | None:
    """An argument as the files of a replay name it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Machine):
        return value.name
    if isinstance(value, int | float):
        return str(int(value)) if float(value).is_integer() else str(value)
    return f"({type(value).__name__})"
