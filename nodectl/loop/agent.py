"""The loop: sample, policy, arbiter, knobs, journal, once every period.

    sweep   every counter, energy zone and GPU at one instant                     pmu.node.Instruments
    decode  integers of two sweeps to what happened between them                  pmu.decode
    decide  what each clock should be, and why                                    nodectl.decide.decider (pure)
    apply   move the knobs that differ, read them back, watch for the effect      nodectl.write.writer
    record  sweep, decisions and outcomes                                         nodectl.journal

Nothing in a tick walks over CPUs in Python: samples and requests are arrays, and only knobs (some hundred at most) have
names. A sensor that goes away becomes a missing reading; the decider then drops the requests that depend on it, which
puts its knobs back to their captured values while the rest continues.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from foundation.shell.errors import NodectlError
from foundation.shell.extension import Extension
from nodectl.calibrated.node_calibration import NOTHING, find_calibration, with_measured
from nodectl.calibrated.node_identity import identity
from nodectl.config import Config
from nodectl.decide.decider import Decider
from nodectl.decide.decisions import Decisions
from nodectl.decide.load_tag import LoadTag
from nodectl.decide.node_cap import CAP_ROW, CapLease, CapRequest, CapSource, FixedCap, PackageCap, packages_mw
from nodectl.decide.shares import NO_SHARE, NodeShares
from nodectl.jobs.hint_watch import HintWatch
from nodectl.journal import JournalWriter
from nodectl.knobs import Outcome
from nodectl.knobs.timing import Deadline, least_period_s
from nodectl.loop.calibration_guest import CalibrationGuest
from nodectl.loop.hardware_watch import HardwareWatch, Patience
from nodectl.loop.histogram import Histogram
from nodectl.loop.metrics_page import MetricsPage, Period, metrics_path
from nodectl.loop.notices import Notices
from nodectl.loop.pace import Pace
from nodectl.loop.sensor_watch import SensorWatch
from nodectl.loop.status_line import StatusLine
from nodectl.loop.summary import RunAccount, Summary, Timing
from nodectl.loop.survey import Survey, at_present_limits, fit_to_node, survey
from nodectl.member.half_joules import HalfJoules
from nodectl.member.inlet_air import InletAir
from nodectl.policies.api import Policy
from nodectl.site_jobs.job_watch import JobWatch
from nodectl.site_jobs.joules_page import joules_path, write_page
from nodectl.write.actuation import Actuation
from nodectl.write.restore import left_behind
from nodectl.write.saves import node_id
from pmu.decode import decode
from pmu.findings import Finding
from pmu.instruments.job_progress import ProgressSource, no_progress
from pmu.layout import Layout
from pmu.node import Instruments
from pmu.ports import Ports
from pmu.readings import RawSweep, Sample

if TYPE_CHECKING:
    from firmware_bridge.scmi.client import Client
    from foundation.wire.power_messages import CapBound
    from nodectl.controller.delegation import Delegation
    from nodectl.member.cluster_cap import ClusterCap
    from nodectl.remembered.program_memory import ProgramMemory
    from nodectl.writer_process.remote_writer import RemoteWriter


class Agent:
    """One run on one node: ``with Agent.open(...) as agent``, then ``tick`` or ``run``. Leaving the block restores."""

    @classmethod
    def open(
        cls,
        ports: Ports,
        config: Config,
        log: Callable[[str], None] = lambda line: None,
        wait: Callable[[int], None] | None = None,
        caps: CapSource | None = None,
        connect: Callable[[], Client] | None = None,
        cluster: ClusterCap | None = None,
        progress: ProgressSource | None = None,
        writer: RemoteWriter | None = None,
        notices: Notices | None = None,
        patience: Patience | None = None,
        program: Callable[[], str | None] | None = None,
        hints: HintWatch | None = None,
    ) -> Agent:
        """Find instruments and knobs, capture what must be restored, take the first sweep.

        ``log`` logs a line whenever something changes that an administrator would want to know. ``wait`` replaces the
        clock's sleep where something else must be able to interrupt it (a signal, the end of a child). ``caps`` may cap
        the node in place of the settings; so may ``cluster``, which also gets the results. ``connect`` opens the SCMI
        controller where that lives in virtual time with the node. ``progress`` reads what the program of this run
        reports; without it the report of the cluster's job is read, if ``cluster`` runs one. ``writer`` writes in a
        process of its own; without it this process writes. The agent closes it. ``notices`` and ``patience``: of the
        segments before this one (``nodectl.loop.whole_run``). ``program``: the name of what runs, whose phases earlier
        runs have kept; without it that of the cluster's job. ``hints``: of the job on this node; ``wait`` returns early
        when one comes. The caller closes it.

        Raises ``NodectlError`` when this node cannot be run with these settings; nothing has been written then.
        """
        notices = notices or Notices(ports.clock, log)
        found = survey(ports)
        now = datetime.datetime.now(datetime.UTC)
        known = find_calibration(config, ports, found.layout, now) if config.decides else NOTHING
        due = known.deadlines if config.writes else ()
        with contextlib.ExitStack() as opened:  # closed again if anything below fails
            # first of all: what a killed run left moved is put back even if this one then finds that it cannot run
            actuation = _open_actuation(ports, config, found, connect, notices, opened, writer, due)
            fitted, lines = fit_to_node(config, found)
            for line in lines:
                notices.add(line)
            if config.decides:
                fitted, lines = with_measured(fitted, known)
                for line in (*known.lines, *lines) if known.lines else ():  # without any file only `doctor` says so
                    log(line)
            # after the actuation has started: limits left by a killed run are back at their captured values by now
            layout = at_present_limits(found.layout, found.knobs, fitted)
            reads = progress or (cluster.progress if cluster else no_progress)
            instruments = Instruments(ports, layout, reads, hints)
            opened.callback(_close, instruments)
            decider = Decider(layout, fitted)
            for name, origin in decider.origins.items():
                log(f"policy {name}: {origin}")
            memory = _open_memory(fitted, ports, layout, decider, program, cluster, notices, opened)
            journal = _open_journal(fitted, layout, decider.extensions, notices)
            if journal:
                opened.callback(_close, journal)
            sensors = SensorWatch(layout, notices)
            watch = _watch(ports, fitted, notices, patience, instruments, actuation, sensors)
            opened.callback(watch.close)
            jobs = JobWatch(ports, layout, fitted, writer.publish_joules if writer else _to_page(ports))
            agent = cls(
                ports, fitted, layout, instruments, instruments.sweep(), decider, actuation, journal, notices,
                _not_read(found),
                cluster or caps or FixedCap(config.caps.node_w), cluster, wait,
                _least_period_s(config, found, due, notices), watch, patience is not None, sensors,
                jobs, memory, hints,
            )  # fmt: skip
            opened.pop_all()
            return agent

    def __init__(
        self,
        ports: Ports,
        config: Config,
        layout: Layout,
        instruments: Instruments,
        first: RawSweep,
        decider: Decider,
        actuation: Actuation | None,
        journal: JournalWriter | None,
        notices: Notices,
        not_read: list[str],
        caps: CapSource,
        cluster: ClusterCap | None,
        wait: Callable[[int], None] | None,
        least_period_s: float,
        hardware: HardwareWatch,
        has_next: bool,
        sensors: SensorWatch,
        jobs: JobWatch,
        memory: ProgramMemory | None,
        hints: HintWatch | None,
    ) -> None:
        """Of parts that are open; ``open`` makes them. No ``actuation``: this run only looks, or is a dry run."""
        self.layout, self.config = layout, config
        self._ports, self._instruments, self._previous = ports, instruments, first
        self._actuation, self._journal = actuation, journal
        self._notices, self._not_read = notices, not_read
        self._caps, self._cluster = caps, cluster
        self._hardware, self._has_next = hardware, has_next
        self.more_hardware = ""
        """What this node has by now and this run does not. A segment's ``run`` then ends, and the next one has it."""
        self._decider, self._memory = decider, memory
        self._guest, self._jobs = CalibrationGuest(ports, layout, config), jobs
        self._left_out: tuple[RawSweep, int, int] | None = None
        self._sides = {policy.name: policy.domain for policy in self._decider.policies}
        self._hints = hints
        if hints:
            hints.want(any(policy.is_woken for policy in decider.policies))
        self._account = RunAccount(layout)
        self._sensors = sensors
        self._shares, self._load_tag = NodeShares(layout, config) if cluster else None, LoadTag(layout)
        self._inlet, self._half_joules = InletAir(layout), HalfJoules(ports, layout, config)
        self._sweep_cost, self._own_cost = Histogram(), Histogram()
        page = metrics_path(ports.lock_path) if config.metrics.listen or config.mqtt.broker else ""
        self._page = MetricsPage(page, layout, config.mode) if page else None
        self._cap: CapRequest | None = None
        self._status = StatusLine(config.caps.rest_w)
        self._ticks = 0
        self._is_stopped = False
        if cluster and actuation and actuation.earlier_cap_mw and cluster.cap_w is None:
            cluster.inherit(actuation.earlier_cap_mw)
        if cluster and self._shares:
            cluster.resume(layout, self._shares, first)
            cluster.site_jobs = jobs.joules
        self._record(first, Decisions(), [], 0, 0)
        self._pace = Pace(ports.clock, config.period_ms, config.budget, wait, least_period_s)
        if actuation:
            actuation.renew_every(self._pace.period_ns)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def tick(self) -> None:
        """Wait for the end of the period; then read, decide, act, record."""
        self._period(self._pace.sleep(), self._decide_and_apply)

    def run(
        self,
        until_ns: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
        each_tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Tick until the clock shows ``until_ns`` or ``is_over`` says so. The last interval is read to its end but
        decides nothing more, since the knobs are about to be restored."""
        while True:
            lateness_ns = self._pace.sleep(until_ns)
            if is_over() or (until_ns is not None and self._ports.clock.now_ns() >= until_ns):
                self._period(lateness_ns, lambda sample: (Decisions(), []))
                return
            self._period(lateness_ns, self._decide_and_apply)
            each_tick()
            if self.more_hardware and self._has_next:
                return

    def stop(self, goes_on: bool = False) -> None:
        """Restore every knob, then close everything; once. A failure of one part does not stop the others. With
        ``goes_on`` another segment of this run follows: the node stays in its cluster, so that knobs under a grant go
        to their restore limits, and the writer process stays."""
        if self._is_stopped:
            return
        self._is_stopped = True
        try:
            if self._actuation:
                if goes_on and self._cluster:
                    self._cluster.renew()
                if not goes_on and self._cluster and self._cluster.leave():
                    self._actuation.lift_restore_limits()
                self._notices.report(self._actuation.stop(goes_on))
        finally:
            if self._memory:
                self._memory.end()
            for part in (self._journal, self._page, self._hardware, self._instruments):
                if part:
                    _close(part)

    def summary(self) -> Summary:
        """The run so far."""
        cpu, gpu = self._account.estimates()
        return Summary(
            mode=self.config.mode + (" --dry-run" if self.config.decides and not self.config.writes else ""),
            elapsed_s=self._account.elapsed_s,
            ticks=self._ticks,
            missed_periods=self._pace.missed,
            period_ms=self._pace.period_ns / 1e6,
            energy=self._account.energy(),
            cpu=cpu,
            gpu=gpu,
            gpu_held_back_s=self._account.gpu_held_back_s,
            lateness=_timing(self._pace.lateness),
            sweep=_timing(self._sweep_cost),
            own_code=_timing(self._own_cost),
            notices=self._notices.lines,
            not_read=self._not_read,
            policies=dict(self._account.policies),
            progress=self._account.progress(),
            others=self._account.others(),
        )

    @property
    def reasons(self) -> list[str]:
        """``more_hardware``, one by one."""
        return self._hardware.reasons

    def status(self) -> str:
        """Cap, power and health in one line; power is the mean since the call before."""
        troubles = [*self._sensors.missing(), *self._notices.troubles]
        if self._hardware.alarm:
            troubles.append(self._hardware.alarm)
        if self._cluster and self._cluster.trouble:
            troubles.append(self._cluster.trouble)
        mode = self.config.mode + (", dry run" if self.config.decides and not self.config.writes else "")
        return self._status.text(self._cap, self._account.elapsed_s, self._account.energy(), troubles, mode)

    def _period(self, lateness_ns: int, act: Callable[[Sample], tuple[Decisions, list[Outcome]]]) -> None:
        cpu_ns, begin_ns = time.thread_time_ns(), time.perf_counter_ns()
        current = self._instruments.sweep()
        swept_ns = time.perf_counter_ns()
        if current.time_ns <= self._previous.time_ns:  # a signal to stop came in the instant of the last sweep
            return
        sample = decode(self.layout, self._previous, current)
        self._previous = current
        self._jobs.look(sample)
        for line in self._jobs.notices():
            self._notices.add(line)
        decisions, outcomes = act(sample)
        self._account.add_sample(sample)
        self._account.add_decisions(sample, decisions, self._sides)
        self._record(current, decisions, outcomes, lateness_ns, time.perf_counter_ns() - begin_ns)
        if self._memory and decisions.policies and self._memory.look(sample) and self._journal:
            self._journal.begin_again()
        self._notices.report(outcomes)
        self._sensors.look(sample)
        self.more_hardware = self._hardware.look(current)
        self._publish(sample, decisions)
        self._ticks += 1
        self._sweep_cost.add(swept_ns - begin_ns)
        self._own_cost.add(time.perf_counter_ns() - swept_ns)
        spent_ns = time.thread_time_ns() - cpu_ns
        for line in self._hints.look(sample, spent_ns * 1e-9, self._pace.least_s) if self._hints else ():
            self._notices.add(line)
        backed_off = self._pace.spent(spent_ns)
        if backed_off:
            self._notices.add(backed_off)
            if self._actuation:
                self._actuation.renew_every(self._pace.period_ns)

    def _decide_and_apply(self, sample: Sample) -> tuple[Decisions, list[Outcome]]:
        if not self.config.decides:
            return Decisions(), []
        request = self._cap = self._caps.request(self._ports.clock.now_ns())
        if self._shares and self._cluster and self._actuation:
            return self._under_cluster(self._cluster, self._shares, self._actuation, request, sample)
        cap_mw = packages_mw(request, self.config.caps.rest_w)
        if self._actuation is None:  # a dry run: as if the controller did its part
            cap = PackageCap(cap_mw, CAP_ROW not in self.config.scmi.knobs)
            return self._jobs.recorded(self._jobs.decider(self._decider).decide(sample, cap)), []
        decisions = self._guest.decide(self._jobs.decider(self._decider), sample, self._actuation.cap(cap_mw))
        outcomes = self._actuation.apply(decisions, sample, limits=self._guest.limits)
        self._guest.answer(outcomes, request)
        self._log_link()
        return self._jobs.recorded(self._guest.recorded(decisions)), outcomes

    def _under_cluster(
        self, cluster: ClusterCap, shares: NodeShares, actuation: Actuation, request: CapRequest | None, sample: Sample
    ) -> tuple[Decisions, list[Outcome]]:
        """Split the cap over the devices, apply the shares, and report the result to the cluster."""
        unseen = self._hardware.alarm
        useful_mw = shares.bound(*actuation.most_w())
        cluster.useful_mw = -1 if unseen else useful_mw
        share = shares.of(request.node_w if request else 0.0, sample)
        if request:
            safe = shares.safe
            try:
                node_mw = min(round(request.node_w * 1000), round(self.config.cluster.safe_w * 1000))
                actuation.limit_restores(node_mw, safe.packages_mw, safe.boards_mw)  # on the disk before any knob moves
            except NodectlError as error:
                self._notices.add(f"not capped: {error}")
                share = NO_SHARE
        cap = actuation.cap(share.packages_mw)
        if share.packages_mw:
            actuation.end_at(CapLease(cluster.lease_end_ns, shares.safe.packages_mw, cluster.now_ns))
        decider = self._jobs.decider(self._decider)
        decisions = self._guest.decide(decider, sample, cap)
        outcomes = actuation.apply(decisions, sample, share.boards_mw, self._guest.limits)
        self._guest.answer(outcomes, request, cluster.most_mw)
        cluster.note_lease(actuation.why_no_lease)
        trouble = actuation.trouble if share.packages_mw else "not capped"
        power_w, quality = shares.node_power(sample)
        joules, _ = shares.node_energy(sample)
        if unseen:  # nobody reads what those cards draw: the most that this node can draw counts, and no energy
            trouble = trouble or unseen
            power_w, quality, joules = self.config.cluster.tdp_w, "estimated", math.nan
        self._load_tag.add(sample)
        cluster.work.add(sample, self.layout)
        cluster.inlet_mk = self._inlet.mk(sample)
        cap_bound: CapBound = "yes" if shares.is_full(share, sample) else decider.cap_bound(decisions, sample)
        raised = actuation.overruled
        cluster.follow(
            sample.elapsed_s, power_w, quality, trouble, self._load_tag.tag, cap_bound, joules, self._previous,
            self._ports.clock.now_ns() - sample.time_ns, raised.by if raised else "",
            raised.devices_w + self.config.caps.rest_w if raised else 0.0,
            self._half_joules.of(sample, cluster.halves()),
        )  # fmt: skip
        if raised and self.config.foreign.end_jobs:
            cluster.end_jobs()
        self._log_link()
        return self._jobs.recorded(self._guest.recorded(decisions)), outcomes

    def _record(
        self, sweep: RawSweep, decisions: Decisions, outcomes: list[Outcome], lateness_ns: int, cost_ns: int
    ) -> None:
        if not self._journal:
            return
        if not self._jobs.keeps_journal:
            self._left_out = sweep, lateness_ns, cost_ns
            return
        try:
            if self._left_out:  # from its sweep on the next interval is decided
                before, self._left_out = self._left_out, None
                self._journal.append(before[0], Decisions(), [], *before[1:])
            self._journal.append(sweep, decisions, outcomes, lateness_ns, cost_ns)
        except (NodectlError, OSError) as error:  # a full disk must not end a job's power management
            self._notices.add(f"journal stopped: {error}")
            with contextlib.suppress(OSError):
                self._journal.close()
            self._journal = None

    def _publish(self, sample: Sample, decisions: Decisions) -> None:
        if not self._page:
            return
        try:
            period = Period(sample, decisions, self._cap.node_w if self._cap else 0.0, self._account, self._pace)
            self._page.update(self._ports.clock.now_ns(), period)
        except OSError as error:
            self._notices.add(f"no metrics: {error}")
            self._page = None

    def _log_link(self) -> None:
        lines = self._actuation.notices() if self._actuation else []
        for line in (*lines, *self._guest.notices()):
            self._notices.add(line)


def _open_actuation(
    ports: Ports, config: Config, found: Survey, connect: Callable[[], Client] | None, notices: Notices,
    opened: contextlib.ExitStack, writer: RemoteWriter | None, due: Sequence[Deadline],
) -> Actuation | None:  # fmt: skip
    """Take the node and put back what a killed run left moved; a run that does not write only says what is left."""
    if not config.writes:
        left = left_behind(config.state_dir, node_id(ports.lock_path), ports.lock_path)
        if left:
            notices.add(left)
        return None
    actuation = Actuation(ports, config, found, _delegation(ports, config, connect), writer, due)
    opened.callback(lambda: notices.report(actuation.stop()))
    outcomes, remarks = actuation.start()
    for line in (*actuation.notices(), *remarks):
        notices.add(line)
    back = sum(outcome.status == "restored" for outcome in outcomes)
    if back:
        notices.add(f"put back {back} knob{'s' if back > 1 else ''} that a killed run had left moved")
    notices.report(outcomes)
    return actuation


def _watch(
    ports: Ports, config: Config, notices: Notices, patience: Patience | None, instruments: Instruments,
    actuation: Actuation | None, sensors: SensorWatch,
) -> HardwareWatch:  # fmt: skip
    absent, vanished = config.gpu.absent, instruments.vanished
    if actuation is None:
        return HardwareWatch(ports, instruments.layout, notices, absent, patience, vanished)
    return HardwareWatch(
        ports,
        instruments.layout,
        notices,
        absent,
        patience,
        vanished,
        actuation.not_written,
        lambda: sensors.cards_back,
    )


def _least_period_s(config: Config, found: Survey, due: Sequence[Deadline], notices: Notices) -> float:
    """The shortest period in which every knob has followed its last write, as a calibration has measured it."""
    gaps = least_period_s((knob.name for knob in found.knobs), due)
    slowest = max(gaps, key=gaps.__getitem__, default="")
    if slowest and gaps[slowest] * 1e3 > config.period_ms:
        notices.add(f"period {gaps[slowest] * 1e3:.0f} ms: by the calibration {slowest} takes so long to follow")
    return gaps.get(slowest, 0.0)


def _delegation(ports: Ports, config: Config, connect: Callable[[], Client] | None) -> Delegation | None:
    settings = config.scmi
    if not settings.url:
        return None
    from nodectl.controller.delegation import Delegation  # nodes without a controller carry none of it
    from nodectl.controller.scmi_link import InlineLink, ThreadedLink

    if connect:
        return Delegation(settings, InlineLink(settings.url, connect, ports.clock))
    return Delegation(settings, ThreadedLink(settings.url))


def _open_memory(
    config: Config, ports: Ports, layout: Layout, decider: Decider, program: Callable[[], str | None] | None,
    cluster: ClusterCap | None, notices: Notices, opened: contextlib.ExitStack,
) -> ProgramMemory | None:  # fmt: skip
    """Where clocks are moved by a policy with a memory. A dry run sees nothing of the clocks that it decides on."""
    policy = decider.remembering if config.writes and config.remember else None
    if policy is None:
        return None
    from foundation.phase_files import PhaseFiles  # nodes without GPUs carry none of it
    from nodectl.remembered.program_memory import ProgramMemory

    names = program or (cluster.program if cluster else lambda: None)
    files, others = PhaseFiles.below(config.state_dir), cluster.phases if cluster and not program else None
    driver = identity(ports, layout).gpu_driver
    memory = ProgramMemory(files, policy, layout, driver, notices.add, names, others=others)
    opened.callback(memory.end)
    return memory


def _open_journal(
    config: Config, layout: Layout, added: Sequence[Extension[Policy]], notices: Notices
) -> JournalWriter | None:
    if not config.journal.max_bytes:
        return None
    directory = config.journal_dir
    try:
        return JournalWriter(directory, layout, config, config.journal.max_bytes, added)
    except (NodectlError, OSError) as error:
        if config.journal.dir:  # a journal that was set explicitly is not optional
            raise NodectlError(f"{directory}: cannot keep a journal: {error}") from None
        notices.add(f"no journal: {error}")
        return None


def _to_page(ports: Ports) -> Callable[[str], None]:
    """Of a run that writes by itself."""
    return lambda text: write_page(joules_path(ports.lock_path), text)


def _close(part: JournalWriter | MetricsPage | HardwareWatch | Instruments) -> None:
    with contextlib.suppress(OSError):  # nothing is left to be done with what will not close
        part.close()


def _not_read(found: Survey) -> list[str]:
    """GPUs that are there and give nothing, and why."""
    return [f"{row.name} ({row.why})" for row in found.sensor_rows if _is_dead_gpu(row)]


def _is_dead_gpu(row: Finding) -> bool:
    return row.kind == "gpu" and row.present and not row.readable


def _timing(histogram: Histogram) -> Timing:
    if not histogram.count:
        return Timing(None, None)
    return Timing(histogram.quantile_ns(0.5) / 1e6, histogram.quantile_ns(0.99) / 1e6)
