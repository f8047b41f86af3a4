"""``Result``: what came of a replay, as columns, measures and files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy.typing as npt

from cluster_agent.errors import WrongUseError
from cluster_agent.library.given import World
from cluster_agent.library.remarks import in_words
from cluster_agent.replay import world_run
from cluster_agent.replay.measures import measure, timed
from cluster_agent.scheduler.job_columns import Int64s
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.scheduler.world import Kind

if TYPE_CHECKING:  # a short replay is as long as its imports
    from pathlib import Path

    from cluster_agent.replay.drawn import PowerOverTime
    from cluster_agent.workloads.swf import Finding
    from cluster_agent.workloads.warm_log import Start

_PLANLESS: Final = "makes no plan; leave it out, or choose a policy that does, such as planned or portfolio"


class Result(world_run.Result, frozen=True, kw_only=True, dict=True):
    """The results of a replay. Jobs are in order of submission; of a warm start those are missing that had ended
    before. Arrays have one value for each job, in seconds of the log, watts or joules."""

    given: World
    policy: Choice
    whole: world_run.Result
    """With all jobs of a warm start."""
    start: Start | None = None
    remarks: tuple[str, ...] = ()
    """What was found on the way, in sentences."""

    @property
    def end_s(self) -> Int64s:
        """When each job ended; -1: it was never started."""
        return self.schedule.end_s

    @property
    def wait_s(self) -> Int64s:
        """From the submission to the start of each job; -1: it was never started."""
        wait_s: Int64s = (self.start_s - self.jobs.submit_s).clip(-1)
        return wait_s

    @property
    def findings(self) -> Sequence[Finding]:
        """Jobs of the trace that were dropped or corrected, by reason."""
        return self.world.trace.findings

    @property
    def metrics(self) -> dict[str, Any]:
        """The measures of ``metrics.json``, by name; None: not known here."""
        return dict(self._measured)

    @cached_property
    def _measured(self) -> dict[str, Any]:
        return measure(self)

    @property
    def timings(self) -> dict[str, float]:
        """How long passes and plans took, on nodes: seconds of processor time. Not the same from run to run."""
        return timed(self)

    def summary(self) -> str:
        """The measures in words, as the command prints them."""
        return in_words(self.metrics | self.timings)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Every column of ``jobs.parquet`` by its name, as an array; what is not known is NaN, None or, of times of
        jobs that were never started, NaN."""
        return {name: column.to_numpy(zero_copy_only=False) for name, column in self._arrow_columns().items()}

    def arrow(self) -> Any:
        """The same as a ``pyarrow.Table``, null where not known."""
        import pyarrow as pa  # only here: most replays need none

        return pa.table(self._arrow_columns())

    def pandas(self) -> Any:
        """The same as a ``pandas.DataFrame``."""
        import pandas as pd  # as above

        return pd.DataFrame(self.columns(), copy=False)

    def _arrow_columns(self) -> dict[str, Any]:
        from cluster_agent.replay.output_columns import Shown, columns  # as above

        shown = Shown(self)
        return {column.name: column.cells(shown).arrow() for column in columns(self)}

    def power(self) -> PowerOverTime:
        """The machine's watts and cap over time: each from ``time_s`` until the next. ``WrongUseError`` without
        watts."""
        from cluster_agent.replay.drawn import power_over_time  # as above

        if self.world.kind == "processors" and self.schedule.watts is None:
            raise WrongUseError("power: the machine has no watts; give one that has them, such as machine='curie'")
        return power_over_time(self)

    # --- files

    def write(self, folder: str, command: Sequence[str] = ()) -> list[str]:
        """``jobs.csv``, ``jobs.parquet``, ``metrics.json``, ``manifest.json`` and what else there is, into a new
        folder. Returns what could not be written for want of a package. ``command``: for the manifest."""
        from cluster_agent.replay import written_whole  # as above

        with written_whole.folder(folder) as made:
            return self.write_into(made, command)

    def write_into(self, folder: Path, command: Sequence[str] = ()) -> list[str]:
        """The same, one by one, into a folder that is there (an absolute path); ``OSError`` if it is not, or is
        full."""
        from cluster_agent.replay import outputs  # as above
        from foundation import __version__

        setting, state, files = self.given.setting(self.policy.text), None, dict[str, bytes]()
        if self.start is not None:
            from cluster_agent.library.warm_start import manifest_of  # as above

            state = manifest_of(self.start)
        if self.outcomes:
            from cluster_agent.replay import plan_file  # as above

            files[plan_file.NAME] = plan_file.written(self.outcomes, setting, self.world.trace.sha256)
        if self.policy.composed.portfolio is not None:
            from cluster_agent.replay import plan_file  # as above

            files[plan_file.NAME] = plan_file.written_looks(self.looks, setting, self.world.trace.sha256)
        machine = self.given.load_machine()
        marks = state, "" if machine is None else machine.sha256
        manifest = outputs.manifest(self, setting, self.policy, command, __version__, *marks)
        return outputs.write_into(folder, self, self.metrics, manifest, files)

    def write_swf(self, path: str) -> None:
        """The schedule as a log (.swf or .swf.gz); ``WrongUseError`` for one on nodes."""
        from cluster_agent.replay import outputs  # as above

        check_files(self.policy, self.world.kind, self.given, swf=path)
        outputs.write_swf(path, self, self.policy.text)

    def write_log(self, path: str) -> None:
        """Every event and decision, decided again by the loop in Python; ``clusterctl check-log`` reads it.
        ``WrongUseError`` for plans that depend on the machine's speed, and for jobs or machines that are in no file."""
        from cluster_agent.replay.event_log import VERSION, Header, ReplayMeter, write_log  # as above
        from cluster_agent.scheduler.interfaces import unmetered

        check_files(self.policy, self.world.kind, self.given, log=path)
        meter = ReplayMeter(self.whole.schedule.power_uw) if self.whole.schedule.watts is not None else None
        composition = self.policy.on(self.world.kind)
        loop = world_run.stepped(self.whole.world, composition, meter or unmetered)
        state_sha256 = "" if self.start is None else self.start.sha256
        given = self.given.setting(self.policy.text), self.whole.world.trace.sha256
        chosen = self.policy
        header = Header(VERSION, *given, chosen.origin, state_sha256, chosen.model_origin, chosen.profile_origin)
        write_log(path, header, *loop, self.whole.start_s, meter)

    def write_state(self, path: str, at_s: int) -> None:
        """The jobs as they were at ``at_s``, for another world's ``state``; ``replay`` was given ``at_s``."""
        from cluster_agent.library import warm_start  # as above

        if self.world.shared is not None:
            raise WrongUseError(f"--state-out {path}: not with jobs that share nodes; leave it out")
        if at_s not in self.whole.moments:
            raise WrongUseError(f"--state-at {at_s}: give it to replay(..., at_s=[{at_s}]), too")
        warm_start.save(path, at_s, self.whole, self.policy, self.start)


def check_files(choice: Choice, kind: Kind, given: World, *, swf: str | None = None, log: str | None = None) -> None:
    """``WrongUseError`` for a file that cannot be written of such a replay, or a plan that it cannot repeat."""
    if given.plan_from is not None and choice.composed.plan is None and choice.composed.portfolio is None:
        raise WrongUseError(f"--plan-from {given.plan_from}: {choice.policy.name} {_PLANLESS}")
    if swf is not None and kind == "nodes":
        raise WrongUseError(f"--swf {swf}: a schedule on nodes does not fit that format; use --out")
    if log is not None and choice.on(kind).plan_time_s is not None and given.plan_from is None:
        raise WrongUseError(
            f"--log {log}: with time_s a plan depends on the machine's speed, so that its log cannot"
            " be checked; replay with --out first, then log with --plan-from DIR/plan.jsonl"
        )
    for name in ("failures", "reservations", "windows", "pairs", "best_effort") if log is not None else ():
        if getattr(given, name) is not None:
            raise WrongUseError(f"--log {log}: {name.replace('_', '-')} are not in an event log; leave one of them out")
    if log is not None and not given.in_files:
        raise WrongUseError(f"--log {log}: it names files that check-log reads again: give jobs and machine as files")
