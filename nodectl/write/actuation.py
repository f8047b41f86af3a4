"""From decisions to hardware: the node lock, the writer, the link to a controller, and the check of every effect."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from nodectl.config import Config
from nodectl.decide.decisions import Decisions
from nodectl.decide.node_cap import CAP_ROW, CapLease, PackageCap
from nodectl.knobs import EffectWatch, Knob, Outcome
from nodectl.knobs.api import UNKNOWN, Raised, unit_sign
from nodectl.knobs.known_tools import Names
from nodectl.knobs.registry import rows_of_several
from nodectl.knobs.timing import Deadline
from nodectl.loop.survey import Survey
from nodectl.write.ceilings import under
from nodectl.write.lock import NodeLock
from nodectl.write.places import save_places
from nodectl.write.saves import node_id
from nodectl.write.site_lock import SiteLocks
from nodectl.write.writer import Writer
from pmu.layout import Layout
from pmu.ports import Ports
from pmu.readings import Sample

if TYPE_CHECKING:
    from nodectl.controller.delegation import Delegation
    from nodectl.writer_process.remote_writer import RemoteWriter


TROUBLE: Final = frozenset({"refused", "no-effect", "foreign", "vanished", "left"})
"""Outcomes worth a notice; the others are the normal course of things."""

HUNG_S, HUNG_PERIODS = 10.0, 3
"""Ours: a loop that writes by itself and hangs for so long, and for so many of its periods, is ended by the
restorer above it. A writer process has as long for an answer."""


SECOND_LINE_NS: Final = 5_000_000_000
"""Ours: for so long after somebody has raised a limit in watts, clock limits enforce the cap too."""

_NO_LIMITS: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Overruled:
    """Somebody has set knobs above the cap that they enforce. ``devices_w``: what packages and GPUs may draw together
    then; inf where nothing limits one of them, or its most is not known. ``by``: the program, or "unknown"."""

    devices_w: float
    by: str


@dataclass(frozen=True, slots=True)
class _CapKnobs:
    """The knobs of this run that keep a cap in watts, by name."""

    boards: list[str]  # power limits of GPUs
    all_boards: list[str]  # the same of all GPUs, whether they can be set or not
    rapl: list[str]  # long-term limits of packages
    n_packages: int
    controller: set[str]  # caps of an SCMI controller
    lowest_khz: dict[str, int]  # clock limits, each with the lowest clock of its domain

    @property
    def in_watts(self) -> set[str]:
        """Limits of packages and boards."""
        return {*self.rapl, *self.boards}

    @property
    def is_whole(self) -> bool:
        """Whether every package has a limit in watts."""
        return len(self.rapl) >= self.n_packages

    @classmethod
    def of(cls, layout: Layout, own: Collection[str], delegated: Iterable[Knob]) -> _CapKnobs:
        """``own``: the names of this node's own knobs; ``delegated``: the controller's."""
        packages = [zone.name for zone in layout.zones if zone.kind == "package"]
        limits = [f"rapl/{package}/long_term_uw" for package in packages]
        boards = [f"gpu/{gpu.index}/power_limit_mw" for gpu in layout.gpus]
        lowest_khz = {
            f"cpu/policy{policy}/max_khz": domain.min_khz for domain in layout.domains for policy in domain.policies
        }
        return cls(
            boards=[name for name in boards if name in own],
            all_boards=boards,
            rapl=[name for name in limits if name in own],
            n_packages=max(len(packages), 1),
            controller={knob.name for knob in delegated if knob.name.endswith("/cap_mw")},
            lowest_khz={name: khz for name, khz in lowest_khz.items() if name in own},
        )


class Actuation:
    """All that only a run needs which writes: the node lock, the writer and, where there is one, the controller.

    The node lock is taken before the writer reads an earlier save and released after the last knob is restored. So no
    agent ever captures the values of another one, whatever their state directories.
    """

    def __init__(
        self,
        ports: Ports,
        config: Config,
        survey: Survey,
        delegation: Delegation | None = None,
        remote: RemoteWriter | None = None,
        deadlines: Sequence[Deadline] = (),
    ) -> None:
        """``remote``: a writer in a process of its own, which locks the node itself; it moves no delegated knobs.
        ``deadlines``: by when a calibration has seen the effect of a write."""
        self._clock = ports.clock
        self._lock = NodeLock(config.state_dir, ports.lock_path)
        self._remote = remote
        self._delegation = delegation
        delegated = delegation.knobs if delegation else []
        knobs = [*survey.knobs, *delegated]
        places, node = save_places(config.state_dir, ports.lock_path), node_id(ports.lock_path)
        if remote:
            remote.know_cards({gpu.uuid: gpu.index for gpu in survey.layout.gpus})
        self._writer = remote or Writer(
            knobs, places, node, ports.clock, self._lock.is_current, config.may_raise, config.foreign
        )
        self._site_locks = SiteLocks(survey.knobs, survey.layout.gpus, config.gpu)
        self._names = Names(ports.files, ports.clock)
        self._notices: list[str] = []
        self._logged: set[tuple[str, str]] = set()
        self._watch = EffectWatch(survey.knobs, survey.layout, deadlines)
        self._own = {knob.name for knob in survey.knobs}
        self._movable = {*self._own, *(delegation.rows if delegation else ()), CAP_ROW}
        self._rows_of_several = rows_of_several(survey.layout)
        self._find_rows(())
        self._cap_knobs = _CapKnobs.of(survey.layout, self._own, delegated)
        self._trouble = ""
        self._overruled: Overruled | None = None
        self._second_line_until_ns = 0
        self._claim_s = HUNG_S

    def start(self) -> tuple[list[Outcome], list[str]]:
        """Lock the node and restore what an earlier run left moved; outcomes, and remarks on its save."""
        if not self._remote:
            self._lock.acquire()
        if self._delegation:
            self._delegation.start()
        earlier = self._writer.start()
        self._site_locks.inherit(self._writer.captured)
        self._pass_on_site_locks()
        if self._delegation:
            self._delegation.look_for_lease(self._writer.captured)
        return earlier.outcomes, earlier.remarks

    def cap(self, packages_mw: int) -> PackageCap:
        """Begin a tick under this cap: does a controller enforce it, or must this node?"""
        return self._delegation.update(packages_mw) if self._delegation else PackageCap(packages_mw, True)

    @property
    def earlier_cap_mw(self) -> int:
        """The node's cap, mW, that an earlier run's grant has left in force; 0: none."""
        return self._writer.restore_limits.get(CAP_ROW, 0)

    @property
    def trouble(self) -> str:
        """What was wrong at the last ``apply`` with the knobs that enforce the cap; empty if nothing was."""
        return self._trouble

    @property
    def overruled(self) -> Overruled | None:
        """Who has set a knob above the cap since the ``apply`` before, and what that allowed; None: nobody."""
        return self._overruled

    def limit_restores(self, node_mw: int, packages_mw: int, boards_mw: Sequence[int]) -> None:
        """Limit restores, so that the node's cap is at most ``node_mw`` if the agent dies now: each knob that enforces
        the cap ends at its share of the safe cap, or where it is if that is less. Where only clocks enforce it, they
        end at the lowest, since no higher clock is safe for every load. ``SaveError``: the limits are not on the disk,
        so no cap may be written."""
        knobs = self._cap_knobs
        values = dict(zip(knobs.boards, boards_mw, strict=True)) | dict.fromkeys(knobs.controller, packages_mw)
        values[CAP_ROW] = node_mw  # not a knob: the next run reads it as the cap in force
        values |= dict.fromkeys(knobs.rapl, packages_mw * 1000 // knobs.n_packages)
        self._writer.limit_restores(values if knobs.rapl or knobs.controller else values | knobs.lowest_khz)

    def end_at(self, lease: CapLease) -> None:
        """When the grant ends. Call it in each tick between ``cap`` and ``apply``, so that no cap is set without its
        end."""
        if self._delegation:
            self._delegation.end_at(lease)

    @property
    def why_no_lease(self) -> str:
        """Why only programs of this machine end the cap, so that its lease class is not ``hw``; empty if a controller
        ends it."""
        if self._cap_knobs.boards:
            return "GPUs keep their limits, which no controller ends"
        if not self._delegation:
            return "no controller enforces the cap"
        return self._delegation.why_no_lease

    def lift_restore_limits(self) -> None:
        """The node may leave its cluster: a restore puts captured values back again."""
        self._writer.limit_restores({})

    def apply(
        self,
        decisions: Decisions,
        sample: Sample,
        boards_mw: Sequence[int] = (),
        limits: Mapping[str, int] = _NO_LIMITS,
    ) -> list[Outcome]:
        """Check that the clocks of this interval followed the last writes, then write what has changed. ``limits``: of
        each of these knobs the lower of its decision and this is written."""
        self._notices += self._site_locks.look(sample)
        self._pass_on_site_locks()
        outcomes, knobs = self._watch.judge(sample), self._cap_knobs
        if decisions.knobs is not self._knobs:
            self._find_rows(decisions.knobs)
        settings = dict(zip(self._row_names, decisions.values[self._rows].tolist(), strict=True))
        if knobs.rapl and CAP_ROW in settings:
            share_uw = settings[CAP_ROW] * 1000 // knobs.n_packages if decisions.cap.is_local else 0
            settings |= dict.fromkeys(knobs.rapl, share_uw)
        settings |= dict(zip(knobs.boards, boards_mw, strict=False))
        if self._delegation:
            outcomes += self._delegation.outcomes()
            settings = self._delegation.settings(settings)
        settings = {name: value for name, value in settings.items() if name in self._own or "#" in name}
        settings |= {name: min(settings.get(name) or limit, limit) for name, limit in limits.items()}
        settings = self._within_the_sites_limits(settings)
        written = self._writer.apply(settings, self._clocks_enforce(decisions))
        self._overruled = self._overruled_by(self._writer.take_raised(), settings)
        self._claim()
        self._watch.wrote(written, settings, self._clock.now_ns())
        self._trouble = self._trouble_of((*outcomes, *written))
        return self._names.named(outcomes + written)

    def _clocks_enforce(self, decisions: Decisions) -> bool:
        """Whether clock limits enforce the cap. Where packages have limits in watts, clocks are the second line: they
        count while somebody overrules the first."""
        if not decisions.cap.is_local or not decisions.cap.packages_mw:
            return False
        now_ns = self._clock.now_ns()
        if self._overruled:
            self._second_line_until_ns = now_ns + SECOND_LINE_NS
        return not self._cap_knobs.rapl or now_ns < self._second_line_until_ns

    def _trouble_of(self, outcomes: Iterable[Outcome]) -> str:
        enforcing = {*self._cap_knobs.rapl, *self._cap_knobs.boards, *self._cap_knobs.controller}
        wrong = (one for one in outcomes if one.knob in enforcing and one.status in TROUBLE)
        return next((f"{one.knob}: {one.status}: {one.detail}" for one in wrong), "")

    def _overruled_by(self, raised: Mapping[str, Raised], settings: Mapping[str, int]) -> Overruled | None:
        if not raised:
            return None
        knobs = self._cap_knobs
        by = next((one.by for one in raised.values() if one.by != UNKNOWN), UNKNOWN)
        in_watts = {name: one.allowed or math.inf for name, one in raised.items() if name in knobs.in_watts}
        allowed = {name: settings.get(name) or math.inf for name in (*knobs.rapl, *knobs.all_boards)} | in_watts
        packages_w = sum(allowed[name] for name in knobs.rapl) / 1e6 if knobs.is_whole else math.inf
        return Overruled(packages_w + sum(allowed[name] for name in knobs.all_boards) / 1e3, by)

    def _pass_on_site_locks(self) -> None:
        if self._remote:
            self._remote.know_site_locks(self._site_locks.known)

    def most_w(self) -> tuple[float, list[float]]:
        """The most that the packages together, and each GPU board, may be set to; inf where nothing limits that."""
        knobs, ceilings = self._cap_knobs, self._writer.ceilings.values
        packages_uw = [ceilings.get(name, math.inf) for name in knobs.rapl]
        if len(packages_uw) < knobs.n_packages:
            packages_uw = [math.inf]
        return sum(packages_uw) / 1e6, [ceilings.get(name, math.inf) / 1e3 for name in knobs.all_boards]

    def _within_the_sites_limits(self, settings: Mapping[str, int]) -> dict[str, int]:
        """The settings that may be written: no limit above its ceiling, and no lock on a GPU whose site's lock is not
        known. The first time that changes something, it is logged."""
        bounded = under(self._writer.ceilings.values, settings)
        site, unknown = self._writer.ceilings.site, self._site_locks.unknown
        lower = [name for name, value in bounded.items() if value < settings[name]] if bounded != settings else []
        if kept := [name for name in lower if bounded[name] == site.get(name)]:
            unit = kept[0].rpartition("_")[2]
            self._log_once(
                "ceiling",
                kept,
                f"stays at {bounded[kept[0]]} {unit_sign(unit)}, which the site or another program has set;"
                f" {settings[kept[0]]} were requested (may_raise would allow them)",
            )
        if unknown and (waiting := [name for name in bounded if name in unknown]):
            self._log_once(
                "lock",
                [name for name in waiting if bounded[name]],
                "left alone until its clock shows under load whether the site has locked it, which NVML cannot say;"
                " [gpu] locked_clock_mhz can (0: not locked)",
            )
            bounded = {name: value for name, value in bounded.items() if name not in unknown}
        return bounded

    def _log_once(self, what: str, names: Sequence[str], text: str) -> None:
        """One line on those of these knobs for which ``what`` has not been logged yet."""
        news = [name for name in names if (what, name) not in self._logged]
        if news:
            self._logged.update((what, name) for name in news)
            others = f" and {len(news) - 1} more" if len(news) > 1 else ""
            self._notices.append(f"{news[0]}{others}: {text}")

    def _find_rows(self, knobs: tuple[str, ...]) -> None:
        """Which knobs of the decisions can be moved here, and the row of each: several knobs may follow one row. The
        decider gives the same tuple at each tick."""
        self._knobs = knobs
        named = [(row, name) for row, first in enumerate(knobs) for name in self._rows_of_several.get(first, (first,))]
        movable = [(row, name) for row, name in named if name in self._movable]
        self._rows = np.array([row for row, _ in movable], np.int64)
        self._row_names = [name for _, name in movable]

    def renew_every(self, period_ns: int) -> None:
        """``apply`` is called once in this time, and renews the leases of the written knobs."""
        self._claim_s = max(HUNG_S, HUNG_PERIODS * period_ns / 1e9)
        if self._remote:
            self._remote.renew_every(period_ns)

    def _claim(self) -> None:
        """Have the restorer above this process, where there is one, put the knobs back if the loop hangs from now on. A
        writer process has the leases of its knobs for that."""
        if not self._remote:
            self._lock.renew(self._claim_s)

    def notices(self) -> list[str]:
        """What people should know of the site's limits, of the link to a controller and of the writer process, each
        line once."""
        lines, self._notices = self._notices, []
        lines += self._delegation.notices() if self._delegation else []
        return lines + self._remote.notices() if self._remote else lines

    def not_written(self) -> list[str]:
        """Knobs that this process has found and its writer process has not: their device came in between."""
        return self._remote.lacks(self._own) if self._remote else []

    def stop(self, goes_on: bool = False) -> list[Outcome]:
        """Restore every knob and release the node. ``goes_on``: the writer process stays, for the next segment."""
        self._claim()
        try:
            if self._delegation:
                self._delegation.before_restoring()
            return self._writer.restore_all()
        finally:
            if not (goes_on and self._remote):
                self._writer.close()
            self._lock.release()
            if self._delegation:
                self._delegation.stop()
