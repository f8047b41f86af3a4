"""The cluster's cap on this node: grants in, reports out, and proof that a cap is in force; its jobs use the same link.

A ``CapSource`` for the agent's loop, around the pure ``NodeLease``. It is called once per tick and never waits. All
times of leases are CLOCK_BOOTTIME, which runs on while the node is suspended.

A cap is confirmed when nothing is wrong with the knobs that enforce it (they were read back, and no other limit
overrules them) and the measured power is below it over a window that begins one settle time after the write: "seen" if
the power was above it before, else "provisional". Without a measured power nothing is confirmed.

A cap that was confirmed may be lost again. Somebody raises a limit: then the node reports at once what that limit
allows. Or the power stays above the cap though every limit reads as it was set (a register that no file shows): then it
reports the power. Both count until the cap is confirmed again.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from foundation.steady_clock import Clock, steady_time
from foundation.wire.power_messages import CAP_TOLERANCE, CapBound, Declaration, Grant, LeaseClass, Report
from nodectl.config import Cluster
from nodectl.decide.load_tag import MEASURED, Tag
from nodectl.decide.node_cap import CapRequest
from nodectl.decide.shares import NodeShares
from nodectl.jobs.job_runner import JobThread
from nodectl.member.cluster_link import ClusterLink
from nodectl.member.dispatch_thread import DispatchThread
from nodectl.member.energy_meter import EnergyMeter, Interval
from nodectl.member.half_joules import HalvesNow
from nodectl.member.job_exchange import REPORT_NS, JobExchange
from nodectl.member.lease import NodeLease
from nodectl.member.phase_exchange import PhaseExchange
from nodectl.member.work import WorkDone
from pmu.instruments.job_hints import HintFile
from pmu.layout import Layout
from pmu.readings import NO_RAW_PROGRESS, RawProgress, RawSweep

WINDOW_NS: Final = 200_000_000
"""Ours: the shortest window for a mean power: two ticks."""

COMPLAIN_NS: Final = 60_000_000_000
"""Ours: how often the log says that there is no link, and why."""

RAISED_NS: Final = 2_000_000_000
"""Ours: for so long after somebody has raised a limit no cap is confirmed. A loop of writes is seen again by then."""

BUCKET_S: Final = 0.25
OVER_S: Final = 1.5
"""Ours: a cap is lost if the mean power of each bucket is above what was in force for so long, and for a settle time. A
package may draw more for about a second after it was idle, until its running average is at its limit."""

AGAIN, AGAIN_NS = 3, 10_000_000_000
"""Ours: raised so often within this time, a limit is raised again and again."""

RENEW_S: Final = 0.5
"""Ours: how long a run that begins again waits for a lease that is new; a cluster agent answers within milliseconds."""

LEAVE_S: Final = 3.0
REPEAT_S: Final = 0.5
"""Ours: how long a run that ends waits until it may run uncapped, and how often it repeats its request."""


_CAP_BOUND: Final[tuple[CapBound, ...]] = ("", "no", "unsure", "yes")
"""Ascending: the worst value since the last report is reported."""


MOST_NAME, MOST_MW = 96, 1_000_000_000
"""Of a report's fields ``raised_by`` and ``limit_mw``."""


def boottime_ns() -> int:
    """CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def declaration(settings: Cluster) -> Declaration:
    """The declaration of this node for the ledger, from the settings."""
    return Declaration(
        tdp_mw=round(settings.tdp_w * 1000),
        mop_mw=round(settings.mop_w * 1000),
        safe_mw=round(settings.safe_w * 1000),
        boot_mw=round(settings.boot_w * 1000),
        lease_class=settings.lease_class,
        settle_ms=round(settings.settle_s * 1000),
        watchdog_ms=round(settings.watchdog_s * 1000),
    )


class ClusterCap:
    """One run as a member of its cluster. ``log`` logs a line when something changes."""

    def __init__(
        self,
        settings: Cluster,
        link: ClusterLink,
        boot_id: str,
        log: Callable[[str], None] = lambda line: None,
        now_ns: Callable[[], int] = boottime_ns,
        jobs: JobThread | None = None,
        unix_s: Clock | None = None,
        dispatch: DispatchThread | None = None,
    ) -> None:
        """``jobs``: None for a node that runs none. It is closed with this, and so is ``dispatch``. ``now_ns`` and
        ``unix_s``: the clocks of leases and of job parts, neither of which anybody sets."""
        self._declared = declaration(settings)
        self.work = WorkDone()
        self._link, self._log, self._boot_id = link, log, boot_id
        self.now_ns = now_ns
        """The clock of leases."""
        self._name = settings.name
        self._lease = self._new_lease(self._declared.tdp_mw)
        self._is_capped = False
        self._has_left = False
        self._was_up: bool | None = None
        self._complain_ns = self.now_ns() + COMPLAIN_NS
        self._report_ns = -1
        self._power_mw = -1
        self._quality = "missing"
        self._tag: Tag = ""
        self._cap_bound: CapBound = ""
        self.useful_mw = -1
        """The highest cap that this node can use (``Report.useful_mw``)."""
        self.inlet_mk = -1
        """Of the air that this node takes in (``Report.inlet_mk``)."""
        self.site_jobs: Callable[[], dict[str, tuple[int, int]]] = dict
        """What jobs of the site's manager have drawn here (``Report.site_jobs``)."""
        self._meter = EnergyMeter(boot_id, jobs.kept() if jobs else b"", unix_s or steady_time(), now_ns)
        self._changed_ns = -1  # when the cap that should act was last changed; -1: it is confirmed
        self._window: list[float] = [0.0, 0.0]  # joules and seconds since it has settled
        self._drew_mw = -1
        self._is_raise = False
        self._raised_ns: deque[int] = deque(maxlen=AGAIN)  # when somebody was last seen to raise a limit
        self._raised_by = ""
        self._over = _OverCap(max(OVER_S, self._declared.settle_ms / 1000))
        self._jobs = JobExchange(link, jobs, self._meter, dispatch is not None) if jobs else None
        self._dispatch = dispatch

    def __enter__(self) -> ClusterCap:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def inherit(self, cap_mw: int) -> None:
        """Before the first tick: an earlier run's grant has left this cap in force, and its lease is over."""
        self._lease = self._new_lease(cap_mw)
        self._is_capped = True

    def resume(self, layout: Layout, shares: NodeShares, first: RawSweep) -> None:
        """The first sweep of this run: energy counters go on where an earlier run has left them."""
        self._meter.resume(layout, shares, first)

    def request(self, now_ns: int) -> CapRequest | None:
        """The cap of this tick; None before the first grant, when nobody has capped this node yet."""
        lease = self._lease
        here_ns = self.now_ns()
        before_mw = lease.cap_mw
        for grant in self._link.receive():
            self._take(lease, here_ns, grant)
        if self._jobs:
            self._jobs.exchange(here_ns)
        if self._is_capped and lease.lapse(here_ns):
            self._log(f"the lease is over: {lease.cap_mw / 1000:g} W, the safe cap ({self._why_silent()})")
            self._change(here_ns, before_mw)
        self._note_link()
        if self._dispatch:
            self._dispatch.lease = lease.cap_mw, lease.lease_end_ns if self._is_capped else 0
        return CapRequest(lease.cap_mw / 1000, "the cluster") if self._is_capped else None

    def progress(self) -> RawProgress:
        """The progress that the one job on this node reports; none where there is no job, or several."""
        return self._jobs.progress() if self._jobs else NO_RAW_PROGRESS

    def hint_page(self) -> HintFile | None:
        """The page of hints of the one job on this node; None where there is no job, or several."""
        return self._jobs.hint_page() if self._jobs else None

    def program(self) -> str | None:
        """What the one job on this node runs; None where that is not known."""
        job = self._jobs.job() if self._jobs else None
        return job.program if job else None

    @property
    def phases(self) -> PhaseExchange | None:
        """Phases of programs from and for other nodes; None for a node that runs no jobs."""
        return PhaseExchange(self._link, self._name, self._jobs.job) if self._jobs else None

    def halves(self) -> HalvesNow:
        """The runs that have halves of this node, and which."""
        return self._jobs.halves() if self._jobs else {}

    def follow(
        self, elapsed_s: float, power_w: float, quality: str, trouble: str, tag: Tag = "", cap_bound: CapBound = "no",
        joules: float | None = None, sweep: RawSweep | None = None, sweep_age_ns: int = 0,
        raised_by: str = "", allowed_w: float = 0.0, parts: Mapping[str, float] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """After each tick: the power of the node, what is wrong with the knobs that enforce the cap (``trouble``), its
        load tag, and whether it is cap-bound (``cap_bound``). Confirms the cap, and reports when it is time.
        ``joules``: its energy by the counters in ``sweep``, which are ``sweep_age_ns`` old; None: power times time.
        ``raised_by``: who has set a limit above the cap since the last call ("": nobody), so that the node was allowed
        ``allowed_w`` (inf: not known). ``parts``: whose how much of the joules is (``half_joules``)."""
        lease = self._lease
        here_ns = self.now_ns()
        self._quality, self._tag = quality, tag
        self._cap_bound = max(self._cap_bound, cap_bound, key=_CAP_BOUND.index)
        self._power_mw = -1 if math.isnan(power_w) else max(round(power_w * 1000), 0)
        energy_j = power_w * elapsed_s if joules is None else joules
        # the time of the sweep, not of this call: to move many knobs can take longer than a tick
        self._meter.add(Interval(here_ns - sweep_age_ns, elapsed_s, energy_j, quality), sweep, parts)
        if raised_by and self._is_capped:
            self._note_raised(here_ns, raised_by, allowed_w)
        if self._is_capped and self._power_mw >= 0 and self._over.add(elapsed_s, power_w, lease.limit_mw):
            self._log(
                f"ALARM: {self._over.mean_w:.0f} W are drawn where at most {lease.limit_mw / 1000:g} W were in force:"
                " the cluster counts them"
            )
            self._lose(here_ns, round(self._over.mean_w * 1000))
        if self._changed_ns >= 0 and not trouble and self._power_mw >= 0:
            self._judge(lease, here_ns, elapsed_s, power_w)
        if here_ns >= self._report_ns:
            self._report(here_ns)

    def end_jobs(self) -> None:
        """If somebody raises limits again and again: end every job part on this node."""
        here_ns = self.now_ns()
        is_again = len(self._raised_ns) == AGAIN and here_ns - self._raised_ns[0] < AGAIN_NS
        if self._jobs and is_again and (jobs := self._jobs.end_jobs()):
            self._raised_ns.clear()
            numbers = ", ".join(str(job) for job in jobs)
            self._log(
                f"ALARM: job {numbers} is ended: a limit was set above the cap again and again"
                f" ({self._raised_by or 'unknown'}; [foreign] end_jobs)"
            )

    @property
    def most_mw(self) -> int:
        """The highest cap of use: its TDP, or what the site's own limits allow."""
        tdp_mw = self._declared.tdp_mw
        return min(tdp_mw, self.useful_mw) if self.useful_mw >= 0 else tdp_mw

    @property
    def lease_end_ns(self) -> int:
        """Until when the cap is granted."""
        return self._lease.lease_end_ns

    def note_lease(self, why_none: str) -> None:
        """Whether a controller ends the cap with its lease (``why_none`` empty), as class ``hw`` declares. While it
        does not, nothing surely does, and this node declares ``sticky``."""
        lease = self._lease
        lease_class: LeaseClass = "sticky" if why_none else "hw"
        if self._declared.lease_class != "hw" or lease.declaration.lease_class == lease_class:
            return
        lease.declaration = msgspec.structs.replace(self._declared, lease_class=lease_class)
        self._log(
            f"lease_class sticky in place of hw: {why_none}" if why_none else "lease_class hw: the controller ends it"
        )
        self._report_ns = -1  # the ledger counts by it

    def renew(self) -> None:
        """Report now and wait a bounded time for the grant, before a pause in which nobody looks at the link: the pause
        may then last as long as the whole lease. What the grant changes is applied after the pause, in which the knobs
        are at their restore limits."""
        if not self._is_capped:
            return
        here_ns, lease = self.now_ns(), self._lease
        end_ns, lease_end_ns = here_ns + round(RENEW_S * 1e9), lease.lease_end_ns
        self._report(here_ns)
        while self.now_ns() < end_ns and lease.lease_end_ns <= lease_end_ns:
            self._link.wait(50)
            for grant in self._link.receive():
                self._take(lease, self.now_ns(), grant)

    def leave(self) -> bool:
        """Request to run uncapped, and wait for the answer a bounded time; True if it was granted."""
        lease = self._lease
        if not self._is_capped:
            return True
        end_ns, ask_ns = self.now_ns() + round(LEAVE_S * 1e9), -1
        while self.now_ns() < end_ns:
            if self.now_ns() >= ask_ns:
                self._report(self.now_ns(), is_leaving=True)
                ask_ns = self.now_ns() + round(REPEAT_S * 1e9)
            for grant in self._link.receive():
                self._take(lease, self.now_ns(), grant)
            if self._has_left:
                return True
            self._link.wait(50)
        self._log(f"no leave within {LEAVE_S:g} s: the cap stays, at most {self._declared.safe_mw / 1000:g} W")
        return False

    @property
    def cap_w(self) -> float | None:
        """The cap that should be in force; None while nobody has capped this node."""
        return self._lease.cap_mw / 1000 if self._is_capped else None

    @property
    def limit_w(self) -> float | None:
        """The highest cap that may still be in force; None while nobody has capped this node."""
        return self._lease.limit_mw / 1000 if self._is_capped else None

    @property
    def trouble(self) -> str:
        """Why the cluster agent is not reached, or grants nothing; empty while all is well."""
        is_granted = self._lease.lease_end_ns > self.now_ns() or not self._is_capped
        return "" if self._link.is_up and is_granted else self._why_silent()

    def close(self) -> None:
        """Close the link; jobs continue."""
        if self._dispatch:
            self._dispatch.close()
        if self._jobs:
            self._jobs.close()
        self._link.close()

    def _new_lease(self, limit_mw: int) -> NodeLease:
        return NodeLease(self._name, self._boot_id, self._declared, limit_mw, self.now_ns())

    def _take(self, lease: NodeLease, here_ns: int, grant: Grant) -> None:
        before_mw, was_capped = lease.cap_mw, self._is_capped
        if lease.take(here_ns, grant):
            return  # late, doubled, or of a cluster agent that has been replaced: void, and not worth a line
        self._is_capped, self._has_left = True, grant.is_leave
        if grant.cap_mw != before_mw or not was_capped:
            self._change(here_ns, before_mw if was_capped else self._declared.tdp_mw)
        elif self._changed_ns < 0:
            lease.confirm("seen" if self._drew_mw > grant.cap_mw else "provisional")  # renewed: it is in force already

    def _change(self, here_ns: int, before_mw: int) -> None:
        self._changed_ns, self._window, self._drew_mw = here_ns, [0.0, 0.0], self._power_mw
        self._is_raise = self._lease.cap_mw >= before_mw

    def _note_raised(self, here_ns: int, by: str, allowed_w: float) -> None:
        """The node was allowed more than its cap, and may be so again at any moment."""
        self._raised_ns.append(here_ns)
        self._raised_by = by[:MOST_NAME]
        allowed_mw = round(allowed_w * 1000) if allowed_w < MOST_MW / 1000 else self._declared.tdp_mw
        self._lose(here_ns, allowed_mw)

    def _lose(self, here_ns: int, limit_mw: int) -> None:
        """The cap is not in force any more: count ``limit_mw`` until it is confirmed again."""
        is_more = self._lease.overrule(limit_mw)
        self._changed_ns, self._window, self._is_raise = here_ns, [0.0, 0.0], False
        if is_more:
            self._report_ns = -1  # at once: these watts are not counted yet

    def _judge(self, lease: NodeLease, here_ns: int, elapsed_s: float, power_w: float) -> None:
        """Whether the new cap is in force (rule 5 of docs/ledger.md)."""
        if self._raised_ns and here_ns < self._raised_ns[-1] + RAISED_NS:
            return
        began_ns = here_ns - round(elapsed_s * 1e9)  # of the interval that was measured
        settled_ns = self._changed_ns + self._declared.settle_ms * 1_000_000
        if here_ns == self._changed_ns or (not self._is_raise and began_ns < settled_ns):
            return
        self._window[0] += power_w * elapsed_s
        self._window[1] += elapsed_s
        if not self._is_raise and self._window[1] * 1e9 < WINDOW_NS:
            return
        mean_mw = 1000 * self._window[0] / self._window[1]
        if mean_mw > CAP_TOLERANCE * lease.cap_mw:
            self._window = [0.0, 0.0]  # not yet: a new window
            return
        lease.confirm("seen" if self._drew_mw > lease.cap_mw else "provisional")
        self._changed_ns, self._raised_by = -1, ""
        self._report(here_ns)  # at once: watts are waited for

    def _report(self, here_ns: int, is_leaving: bool = False) -> None:
        made: Report = self._lease.report(here_ns, self._power_mw, is_leaving)
        self._link.send(
            msgspec.structs.replace(
                made,
                energy_mj=round(self._meter.joules * 1000),
                asked_mw=self._lease.cap_mw if self._is_capped else -1,
                quality=self._quality,
                tag=self._tag,
                tag_source=MEASURED if self._tag else "",
                held=self._cap_bound,
                **self.work.totals(),
                useful_mw=self.useful_mw,
                raised_by=self._raised_by,
                dispatched=self._dispatch.running() if self._dispatch else [],
                inlet_mk=self.inlet_mk,
                site_jobs=self.site_jobs(),
            )
        )
        self._cap_bound = ""
        self._report_ns = here_ns + REPORT_NS

    def _note_link(self) -> None:
        """Say that the link has come or gone; and once a minute, why there is none."""
        here_ns, link = self.now_ns(), self._link
        is_due = not link.is_up and here_ns >= self._complain_ns
        if link.is_up == self._was_up and not is_due:
            return
        if link.is_up:
            self._log(f"{link.url}: the cluster agent is there")
        elif self._was_up:
            self._log(f"{link.url}: {link.why_down}; the cap stays in force until its lease is over")
        elif link.why_down != "not connected yet" or is_due:
            self._log(f"{link.url}: {link.why_down}")
        else:
            return
        self._was_up = link.is_up
        self._complain_ns = here_ns + COMPLAIN_NS

    def _why_silent(self) -> str:
        return "the cluster agent grants nothing" if self._link.is_up else self._link.why_down


class _OverCap:
    """Whether the power stays above a limit for ``longest_s``: in the mean of each bucket of ``BUCKET_S``."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self.mean_w = 0.0
        """Of the last full bucket."""
        self._over_s = self._joules = self._elapsed_s = 0.0

    def add(self, elapsed_s: float, power_w: float, limit_mw: int) -> bool:
        """One interval; True if the power was above the limit for long enough."""
        self._joules += power_w * elapsed_s
        self._elapsed_s += elapsed_s
        if self._elapsed_s < BUCKET_S:
            return False
        self.mean_w = self._joules / self._elapsed_s
        is_over = self.mean_w * 1000 > CAP_TOLERANCE * limit_mw
        self._over_s = self._over_s + self._elapsed_s if is_over else 0.0
        self._joules = self._elapsed_s = 0.0
        return self._over_s >= self._longest_s


def open_cluster_cap(
    settings: Cluster,
    boot_id: str,
    log: Callable[[str], None],
    jobs: JobThread | None = None,
    unix_s: Clock | None = None,
    dispatch: DispatchThread | None = None,
) -> ClusterCap:
    """With the keys that the settings name. ``unix_s``: the clock of the jobs. ``dispatch``: the node's manager."""
    from pathlib import Path

    from foundation.wire.keys import read_pair, read_public

    is_open = settings.insecure and not settings.key
    keys = None if is_open else read_pair(Path(settings.key))
    server = None if is_open else read_public(settings.server_key)
    link = ClusterLink(settings.url, keys, server, settings.insecure)
    return ClusterCap(settings, link, boot_id, log, jobs=jobs, unix_s=unix_s, dispatch=dispatch)
