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
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from nodectl.config import Config
from nodectl.decide.decider import Decider
from nodectl.decide.decisions import Decisions
from nodectl.decide.load_tag import LoadTag
from nodectl.decide.node_cap import CAP_ROW, CapLease, CapRequest, CapSource, FixedCap, PackageCap, packages_mw
from nodectl.decide.shares import NO_SHARE, NodeShares
from nodectl.journal import JournalWriter
from nodectl.knobs import Outcome
from nodectl.loop.histogram import Histogram
from nodectl.loop.pace import Pace
from nodectl.loop.summary import RunAccount, Summary, Timing
from nodectl.loop.survey import NEEDED_EVENTS, Survey, at_present_limits, fit_to_node, survey
from nodectl.shell.errors import NodectlError
from nodectl.write.actuation import TROUBLE, Actuation
from nodectl.write.restore import left_behind
from nodectl.write.saves import node_id
from pmu.decode import decode
from pmu.findings import Finding
from pmu.instruments.job_progress import Told, nobody_tells
from pmu.layout import Layout
from pmu.node import Instruments
from pmu.ports import Ports
from pmu.readings import GpuSample, Quality, RawSweep, Sample, type_f64

if TYPE_CHECKING:
    from firmware_bridge.scmi.client import Client
    from nodectl.controller.delegation import Delegation
    from nodectl.member.cluster_cap import ClusterCap
    from nodectl.wire.power_messages import Held

CALM_NS: Final = 600_000_000_000
"""Ours: a knob's trouble is logged again if it was absent for ten minutes, so that one that comes and goes is logged
once."""

GPU_PARTS: Final[dict[str, Callable[[GpuSample], type_f64]]] = {
    "power readings of GPU": lambda gpu: gpu.power_w,
    "utilisation of GPU": lambda gpu: gpu.sm_occupancy,
    "clock readings of GPU": lambda gpu: gpu.sm_clock_mhz,
}
"""Readings that a GPU may lose while it still answers; policies and checks depend on them."""

NOTICES_KEPT: Final = 200
"""Ours: lines that the summary keeps; each is also logged when it arises."""


class Agent:
    """One run on one node. ``start``, then ``tick`` or ``run``, then ``stop`` under all circumstances.

    ``say`` logs a line whenever something changes that an administrator would want to know. ``wait`` replaces the
    clock's sleep where something else must be able to interrupt it (a signal, the end of a child). ``caps`` may cap the
    node in place of the settings; so may ``cluster``, which also gets the results. ``connect`` opens the SCMI
    controller where that lives in virtual time with the node. ``told`` reads what the program of this run reports;
    without it the report of the cluster's job is read, if ``cluster`` runs one.
    """

    def __init__(
        self,
        ports: Ports,
        config: Config,
        say: Callable[[str], None] = lambda line: None,
        wait: Callable[[int], None] | None = None,
        caps: CapSource | None = None,
        connect: Callable[[], Client] | None = None,
        cluster: ClusterCap | None = None,
        told: Told | None = None,
    ) -> None:
        self._ports = ports
        self._asked = config
        self._say = say
        self._wait = wait
        self._cluster = cluster
        self._shares: NodeShares | None = None
        self._caps = cluster or caps or FixedCap(config.caps.node_w)
        self._connect = connect
        self._told: Told = told or (cluster.told if cluster else nobody_tells)
        self._config = config
        self._notices: deque[str] = deque(maxlen=NOTICES_KEPT)
        self._calm_from_ns: dict[tuple[str, str, str], int] = {}  # (knob, status, reason): when it is news again
        self._not_read: list[str] = []
        self._actuation: Actuation | None = None
        self._journal: JournalWriter | None = None
        self._instruments: Instruments | None = None
        self._sweep_cost, self._own_cost = Histogram(), Histogram()
        self._ticks = 0

    @property
    def layout(self) -> Layout:
        """The node, once started."""
        return self._layout

    @property
    def config(self) -> Config:
        """The settings in use: the requested ones, without a side of the node that cannot be driven."""
        return self._config

    def start(self) -> None:
        """Find instruments and knobs, capture what must be restored, take the first sweep.

        Raises ``NodectlError`` when this node cannot be run with these settings; nothing has been written then.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

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

    def stop(self) -> None:
        """Restore every knob, then close everything. A failure of one part does not stop the others."""
        actuation, journal, instruments = self._actuation, self._journal, self._instruments
        self._actuation = self._journal = self._instruments = None
        try:
            if actuation:
                if self._shares and self._cluster and self._cluster.leave():
                    actuation.let_go()
                self._report(actuation.stop())
        finally:
            for part in (journal, instruments):
                if part:
                    with contextlib.suppress(OSError):  # nothing is left to be done with what will not close
                        part.close()

    def summary(self) -> Summary:
        """The run so far."""
        cpu, gpu = self._account.estimates()
        return Summary(
            mode=self._config.mode + (" --dry-run" if self._config.decides and not self._config.writes else ""),
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
            notices=list(self._notices),
            not_read=self._not_read,
            policies=dict(self._account.policies),
            progress=self._account.progress(),
        )

    def _start(self) -> None:
        found = survey(self._ports)
        self._not_read = [f"{row.name} ({row.why})" for row in found.sensor_rows if _is_dead_gpu(row)]
        # first of all: what a killed run left moved is put back even if this one then finds that it cannot run
        self._start_actuation(found)
        self._config, notices = fit_to_node(self._asked, found)
        for notice in notices:
            self._notice(notice)
        # after the actuation has started: limits left behind by a killed run are back at their captured values by now
        self._layout = at_present_limits(found.layout, found.knobs)
        self._instruments = Instruments(self._ports, self._layout, self._told)
        self._decider = Decider(self._layout, self._config)
        self._sides = {policy.name: policy.domain for policy in self._decider.policies if policy}
        self._account = RunAccount(self._layout)
        self._watch_sensors()
        self._join()
        self._open_journal()
        self._previous = self._instruments.sweep()
        self._record(self._previous, Decisions(), [], 0, 0)
        self._pace = Pace(self._ports.clock, self._config.period_ms, self._config.budget, self._wait)

    def _start_actuation(self, found: Survey) -> None:
        if not self._asked.writes:
            left = left_behind(self._asked.state_dir, node_id(self._ports.lock_path))
            if left:
                self._notice(left)
            return
        self._actuation = Actuation(self._ports, self._asked, found, self._delegation())
        outcomes, remarks = self._actuation.start()
        self._say_what_the_link_says()
        for remark in remarks:
            self._notice(remark)
        back = sum(outcome.status == "restored" for outcome in outcomes)
        if back:
            self._notice(f"put back {back} knob{'s' if back > 1 else ''} that a killed run had left moved")
        self._report(outcomes)

    def _join(self) -> None:
        if self._cluster:
            self._shares = NodeShares(self._layout, self._config)
            self._load_tag = LoadTag(self._layout)
            self._cluster.begin(self._actuation.held_mw if self._actuation else 0)

    def _delegation(self) -> Delegation | None:
        settings = self._asked.scmi
        if not settings.url:
            return None
        from nodectl.controller.delegation import Delegation  # nodes without a controller carry none of it
        from nodectl.controller.scmi_link import InlineLink, ThreadedLink

        if self._connect:
            return Delegation(settings, InlineLink(settings.url, self._connect, self._ports.clock))
        return Delegation(settings, ThreadedLink(settings.url))

    def _open_journal(self) -> None:
        if not self._config.journal.max_bytes:
            return
        directory = self._config.journal_dir
        try:
            self._journal = JournalWriter(directory, self._layout, self._config, self._config.journal.max_bytes)
        except (NodectlError, OSError) as error:
            if self._config.journal.dir:  # a journal that was set explicitly is not optional
                raise NodectlError(f"{directory}: cannot keep a journal: {error}") from None
            self._notice(f"no journal: {error}")

    def _period(self, lateness_ns: int, act: Callable[[Sample], tuple[Decisions, list[Outcome]]]) -> None:
        assert self._instruments is not None, "not started"
        cpu_ns, begin_ns = time.thread_time_ns(), time.perf_counter_ns()
        current = self._instruments.sweep()
        swept_ns = time.perf_counter_ns()
        if current.time_ns <= self._previous.time_ns:  # a signal to stop came in the instant of the last sweep
            return
        sample = decode(self._layout, self._previous, current)
        self._previous = current
        decisions, outcomes = act(sample)
        self._account.add_sample(sample)
        self._account.add_decisions(sample, decisions, self._sides)
        self._record(current, decisions, outcomes, lateness_ns, time.perf_counter_ns() - begin_ns)
        self._report(outcomes)
        self._note_missing(sample)
        self._ticks += 1
        self._sweep_cost.add(swept_ns - begin_ns)
        self._own_cost.add(time.perf_counter_ns() - swept_ns)
        backed_off = self._pace.spent(time.thread_time_ns() - cpu_ns)
        if backed_off:
            self._notice(backed_off)

    def _decide_and_apply(self, sample: Sample) -> tuple[Decisions, list[Outcome]]:
        if not self._config.decides:
            return Decisions(), []
        request = self._caps.request(self._ports.clock.now_ns())
        if self._shares and self._cluster and self._actuation:
            return self._under_cluster(self._cluster, self._shares, self._actuation, request, sample)
        cap_mw = packages_mw(request, self._config.caps.rest_w)
        if self._actuation is None:  # a dry run: as if the controller did its part
            return self._decider.decide(sample, PackageCap(cap_mw, CAP_ROW not in self._config.scmi.knobs)), []
        decisions = self._decider.decide(sample, self._actuation.cap(cap_mw))
        outcomes = self._actuation.apply(decisions, sample)
        self._say_what_the_link_says()
        return decisions, outcomes

    def _under_cluster(
        self, cluster: ClusterCap, shares: NodeShares, actuation: Actuation, request: CapRequest | None, sample: Sample
    ) -> tuple[Decisions, list[Outcome]]:
        """Split the cap over the devices, apply the shares, and report the result to the cluster."""
        share = shares.of(request.node_w if request else 0.0, sample)
        if request:
            safe = shares.safe
            try:
                node_mw = min(round(request.node_w * 1000), round(self._config.cluster.safe_w * 1000))
                actuation.hold(node_mw, safe.packages_mw, safe.boards_mw)  # on the disk before the first knob moves
            except NodectlError as error:
                self._notice(f"not capped: {error}")
                share = NO_SHARE
        cap = actuation.cap(share.packages_mw)
        if share.packages_mw:
            actuation.end_at(CapLease(cluster.lease_end_ns, shares.safe.packages_mw, cluster.now_ns))
        decisions = self._decider.decide(sample, cap)
        outcomes = actuation.apply(decisions, sample, share.boards_mw)
        cluster.note_lease(actuation.why_no_lease)
        trouble = actuation.trouble if share.packages_mw else "not capped"
        power_w, quality = shares.node_power(sample)
        self._load_tag.add(sample)
        cluster.work.add(sample)
        held: Held = "yes" if shares.is_full(share, sample) else self._decider.held(decisions, sample)
        cluster.follow(sample.elapsed_s, power_w, quality, trouble, self._load_tag.tag, held)
        self._say_what_the_link_says()
        return decisions, outcomes

    def _record(
        self, sweep: RawSweep, decisions: Decisions, outcomes: list[Outcome], lateness_ns: int, cost_ns: int
    ) -> None:
        if not self._journal:
            return
        try:
            self._journal.append(sweep, decisions, outcomes, lateness_ns, cost_ns)
        except (NodectlError, OSError) as error:  # a full disk must not end a job's power management
            self._notice(f"journal stopped: {error}")
            with contextlib.suppress(OSError):
                self._journal.close()
            self._journal = None

    def _watch_sensors(self) -> None:
        layout = self._layout
        never_there = not set(NEEDED_EVENTS) <= set(layout.events)  # already said at the start
        self._cpu_gone: npt.NDArray[np.bool_] = np.full(len(layout.cpus), never_there)
        self._gpu_gone: npt.NDArray[np.bool_] = np.zeros(len(layout.gpus), np.bool_)
        self._energy_gone: npt.NDArray[np.bool_] = np.zeros(len(layout.zones), np.bool_)
        self._parts_gone: dict[str, npt.NDArray[np.bool_]] | None = None

    def _note_missing(self, sample: Sample) -> None:
        """Log once when sensors go missing and once when they are back."""
        layout = self._layout
        cpus = sample.cpu.quality == Quality.MISSING
        gpus = sample.gpu.quality == Quality.MISSING
        zones = sample.energy_quality == Quality.MISSING
        self._note_change("counters of CPU", [str(c) for c in layout.cpus], self._cpu_gone, cpus)
        self._note_change("readings of GPU", [str(g.index) for g in layout.gpus], self._gpu_gone, gpus)
        self._note_change("energy of", [z.name for z in layout.zones], self._energy_gone, zones)
        self._cpu_gone, self._gpu_gone, self._energy_gone = cpus, gpus, zones
        self._note_missing_parts(sample.gpu, gpus)

    def _note_missing_parts(self, gpu: GpuSample, gone: npt.NDArray[np.bool_]) -> None:
        if self._parts_gone is None and not np.isnan(sum(values(gpu) for values in GPU_PARTS.values())).any():
            return  # nearly always: one look at the sum, in which a NaN stays
        names = [str(board.index) for board in self._layout.gpus]
        before = self._parts_gone or {what: np.zeros_like(gone) for what in GPU_PARTS}
        now = {what: np.isnan(values(gpu)) & ~gone for what, values in GPU_PARTS.items()}
        for what in GPU_PARTS:
            self._note_change(what, names, before[what], now[what])
        self._parts_gone = now if any(parts.any() for parts in now.values()) else None

    def _note_change(
        self, what: str, names: list[str], before: npt.NDArray[np.bool_], now: npt.NDArray[np.bool_]
    ) -> None:
        if np.array_equal(before, now):
            return
        for rows, verb in ((now & ~before, "went missing"), (before & ~now, "are back")):
            if rows.any():
                self._notice(f"{what} {_listed([names[i] for i in np.flatnonzero(rows)])} {verb}")

    def _report(self, outcomes: Iterable[Outcome]) -> None:
        """Log what is wrong with each knob in trouble, once while it lasts; knobs with one trouble share a line."""
        troubled = [outcome for outcome in outcomes if outcome.status in TROUBLE]
        if not troubled:
            return
        now_ns = self._ports.clock.now_ns()
        news: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in troubled:
            trouble = (outcome.knob, outcome.status, outcome.reason)
            if now_ns > self._calm_from_ns.get(trouble, -1):
                news.setdefault(trouble[1:], []).append(outcome)
            self._calm_from_ns[trouble] = now_ns + CALM_NS
        for (status, reason), alike in news.items():
            why = f" ({reason})" if reason else ""
            likewise = " (and likewise)" if len({outcome.detail for outcome in alike}) > 1 else ""
            names = _listed([outcome.knob for outcome in alike])
            self._notice(f"{names}: {status}{why}: {alike[0].detail}{likewise}")

    def _say_what_the_link_says(self) -> None:
        for line in self._actuation.notices() if self._actuation else ():
            self._notice(line)

    def _notice(self, line: str) -> None:
        self._notices.append(line)
        self._say(line)


def _is_dead_gpu(row: Finding) -> bool:
    return row.kind == "gpu" and row.present and not row.readable


def _timing(histogram: Histogram) -> Timing:
    if not histogram.count:
        return Timing(None, None)
    return Timing(histogram.quantile_ns(0.5) / 1e6, histogram.quantile_ns(0.99) / 1e6)


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"
