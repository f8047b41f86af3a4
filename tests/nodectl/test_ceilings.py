"""No limit is written above what the site, the firmware or another program has set: by no cap, grant or restore."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as trials
from hypothesis import strategies as st

from nodectl.config import Caps, Cluster, Config
from nodectl.decide.shares import NodeShares
from nodectl.knobs import Knob, open_knob
from nodectl.knobs.gpu_limits import ClockLock
from nodectl.knobs.registry import KINDS, kind_of
from nodectl.loop.survey import survey
from nodectl.write.ceilings import Ceilings, under
from nodectl.write.restore import last_of_ours, restore_saved
from nodectl.write.saves import SaveError, read_save
from nodectl.write.writer import Writer
from tests.nodectl.file_tree import MAX_KHZ, POWERCAP, StillClock, file_node, limit_path
from tests.nodectl.small_node import layout, sample
from tests.nodectl.test_agent import node, run, settings
from tests.nodectl.test_cluster_cap import CappedNode
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin

LONG_TERM = "rapl/package-0/long_term_uw"
LONG_TERM_FILE = "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:{0}/constraint_0_power_limit_uw"
CLOCK = "cpu/policy0/max_khz"
BOOT = "this-boot"
W = 1_000_000
NO_POLICY = {"cpu_policy": {"name": "none"}, "gpu_policy": {"name": "none"}}


def package_uw(inside: InProcess, package: int = 0) -> int:
    return int(inside.ports.files.read(LONG_TERM_FILE.format(package)))


@contextmanager
def limited(*watts: int) -> Iterator[InProcess]:
    """A busy node of two packages whose site has limited them."""
    with node("skylake-6146", "hpl") as inside:
        for package, limit_w in enumerate(watts):
            inside.ports.files.write(LONG_TERM_FILE.format(package), str(limit_w * W))
        yield inside


def most_uw(inside: InProcess, config, seconds: float) -> tuple[int, list[str]]:
    """The highest long-term limit of package 0 that was seen during a run, and what the run logged."""
    seen: list[int] = []
    sleep = inside.ports.clock.sleep_until_ns

    def look_and_sleep(until_ns: int) -> None:
        seen.append(package_uw(inside))
        sleep(until_ns)

    inside.ports.clock.sleep_until_ns = look_and_sleep
    try:
        _, said = run(inside, config, seconds)
    finally:
        inside.ports.clock.sleep_until_ns = sleep
    return max(seen), said


# --- the node's own cap


def test_a_cap_above_the_sites_limit_leaves_the_limit_where_it_is_and_says_so(tmp_path):
    with limited(95, 95) as inside:
        highest_uw, said = most_uw(inside, settings(tmp_path, caps={"node_w": 500.0}, **NO_POLICY), 2.0)
        assert highest_uw == 95 * W == package_uw(inside)
    assert [line for line in said if LONG_TERM in line and "95000000 uW" in line and "may_raise" in line]


def test_a_cap_below_the_sites_limit_is_set_and_the_limit_comes_back(tmp_path):
    with limited(95, 95) as inside:
        seen: list[int] = []
        sleep = inside.ports.clock.sleep_until_ns
        inside.ports.clock.sleep_until_ns = lambda until: (seen.append(package_uw(inside)), sleep(until))
        run(inside, settings(tmp_path, caps={"node_w": 120.0}, **NO_POLICY), 2.0)
        assert seen[-1] == 60 * W
        assert package_uw(inside) == 95 * W


def test_a_limit_that_may_be_raised_is_raised_to_the_hardwares_most_and_comes_back(tmp_path):
    with limited(95, 95) as inside:
        most = int(inside.ports.files.read(LONG_TERM_FILE.format(0).replace("power_limit", "max_power")))
        config = settings(tmp_path, caps={"node_w": 5000.0}, may_raise=["rapl/*"], **NO_POLICY)
        highest_uw, said = most_uw(inside, config, 2.0)
        assert highest_uw == most
        assert package_uw(inside) == 95 * W
    assert not [line for line in said if "may_raise" in line]


# --- a cluster's grant


def test_a_grant_above_the_sites_limit_leaves_it_and_the_report_says_what_is_of_use(tmp_path):
    with limited(95, 95) as inside:
        made = CappedNode(inside, tmp_path)
        made.ticks(2)
        made.wire.grant(500.0, 1)
        made.ticks(5)
        assert (package_uw(inside), package_uw(inside, 1)) == (95 * W, 95 * W)
        made.wire.grant(200.0, 2)
        made.ticks(15)
        assert package_uw(inside) == 70 * W
        assert {one.useful_mw for one in made.wire.sent} == {2 * 95_000 + 60_000}
        made.wire.grant(520.0, 3)
        made.ticks(5)
        assert package_uw(inside) == 95 * W
        made.wire.on_wait = lambda: made.wire.grant(520.0, 4, is_leave=True)
        made.agent.stop()
        assert package_uw(inside) == 95 * W


def test_what_one_device_may_not_draw_goes_to_the_others():
    shares = NodeShares(layout(n_gpus=2), Config(cluster=Cluster(mop_w=300.0, safe_w=300.0), caps=Caps(rest_w=50.0)))
    busy = sample(layout(n_gpus=2))
    assert shares.bound(math.inf, [math.inf] * 2) == -1, "nobody says what the package can draw"
    assert shares.bound(120.0, [250.0, math.inf]) == (50 + 120 + 250 + 400) * 1000
    share = shares.of(770.0, busy)
    assert share.boards_mw[0] == 250_000 < 300_000 < share.boards_mw[1], "both draw 300 W"
    assert share.packages_mw + sum(share.boards_mw) == 720_000
    assert shares.bound(120.0, [250.0, 300.0]) == (50 + 120 + 250 + 300) * 1000
    assert shares.of(770.0, busy).boards_mw == (250_000, 300_000), "at once"


# --- values that somebody else sets during a run


@pytest.fixture
def files_node(tmp_path):
    return file_node(tmp_path / "node")


def writer_of(ports, tmp_path, **more) -> Writer:
    names = (*(f"cpu/policy{n}/max_khz" for n in range(4)), LONG_TERM)
    writer = Writer(
        [open_knob(ports, name) for name in names], str(tmp_path / "captured.jsonl"), BOOT, StillClock(), **more
    )
    writer.start()
    return writer


def uw(ports) -> int:
    return int(ports.files.read(f"{POWERCAP}/intel-rapl:0/constraint_0_power_limit_uw"))


def set_uw(ports, limit_uw: int) -> None:
    ports.files.write(f"{POWERCAP}/intel-rapl:0/constraint_0_power_limit_uw", str(limit_uw))


def test_a_stricter_value_of_somebody_else_is_the_new_ceiling_and_a_restore_leaves_it(files_node, tmp_path):
    writer = writer_of(files_node, tmp_path)
    writer.apply({LONG_TERM: 120 * W})
    set_uw(files_node, 80 * W)
    assert [one.status for one in writer.apply({LONG_TERM: 110 * W})] == ["foreign"]
    assert writer.ceilings.values[LONG_TERM] == 80 * W
    assert [one.status for one in writer.restore_all()] == ["left"]
    assert uw(files_node) == 80 * W


def test_a_limit_that_was_stricter_for_a_while_is_not_raised_above_it_any_more(files_node, tmp_path):
    writer = writer_of(files_node, tmp_path)
    writer.apply({LONG_TERM: 60 * W})
    set_uw(files_node, 80 * W)
    assert [one.status for one in writer.apply({LONG_TERM: 70 * W})] == ["written"], "80 W are above the cap"
    writer._clock.time_ns += 61 * 10**9
    assert [one.status for one in writer.apply({LONG_TERM: 120 * W})] == ["written"]
    assert uw(files_node) == 80 * W
    writer.apply({LONG_TERM: 70 * W})
    assert [(one.status, one.detail) for one in writer.restore_all()] == [("restored", "70000000 to 80000000")]
    assert uw(files_node) == 80 * W


def test_a_restore_by_another_process_knows_the_ceiling_too(files_node, tmp_path):
    writer = writer_of(files_node, tmp_path)
    writer.apply({LONG_TERM: 60 * W, CLOCK: 1_200_000})
    set_uw(files_node, 80 * W)
    writer.apply({LONG_TERM: 70 * W})
    set_uw(files_node, 60 * W)
    writer._clock.time_ns += 61 * 10**9
    writer.apply({LONG_TERM: 50 * W})
    writer.close()  # and killed
    found = restore_saved(str(tmp_path / "captured.jsonl"), BOOT, lambda name: open_knob(files_node, name))
    assert {one.status for one in found.outcomes} == {"restored"}
    assert uw(files_node) == 80 * W
    assert int(files_node.files.read(limit_path(0))) == MAX_KHZ


def test_nothing_is_written_while_a_new_ceiling_cannot_be_saved(files_node, tmp_path, monkeypatch):
    writer = writer_of(files_node, tmp_path)
    writer.apply({LONG_TERM: 60 * W})
    set_uw(files_node, 80 * W)

    def full(*_: object) -> None:
        raise SaveError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(writer._save, "rewrite", full)
        writer.apply({LONG_TERM: 70 * W})
        set_uw(files_node, 60 * W)
        writer._clock.time_ns += 61 * 10**9
        outcomes = writer.apply({LONG_TERM: 50 * W, CLOCK: 1_200_000})
        assert [(one.status, one.detail) for one in outcomes] == [("refused", "the disk is full")] * 2
        assert uw(files_node) == 60 * W
    writer._clock.time_ns += 61 * 10**9
    assert [one.status for one in writer.apply({LONG_TERM: 50 * W})] == ["written"]
    assert read_save(str(tmp_path / "captured.jsonl")).knobs[LONG_TERM].value == str(80 * W)


def test_a_value_that_was_loosened_before_the_first_write_goes_back_to_the_sites(files_node, tmp_path):
    writer = writer_of(files_node, tmp_path)
    set_uw(files_node, 400 * W)
    writer.apply({LONG_TERM: 300 * W})
    assert uw(files_node) == 150 * W, "as at the start"
    assert read_save(str(tmp_path / "captured.jsonl")).knobs[LONG_TERM].value == str(150 * W)
    writer.apply({LONG_TERM: 100 * W})
    writer.restore_all()
    assert uw(files_node) == 150 * W


def test_an_earlier_value_of_ours_that_somebody_sets_is_theirs(files_node, tmp_path):
    writer = writer_of(files_node, tmp_path)
    writer.apply({LONG_TERM: 60 * W})
    writer.apply({LONG_TERM: 120 * W})
    set_uw(files_node, 60 * W)
    assert [one.status for one in writer.apply({LONG_TERM: 110 * W})] == ["foreign"]
    writer.restore_all()
    assert uw(files_node) == 60 * W


def test_a_limit_that_temperature_or_firmware_keeps_low_sets_no_ceiling(files_node, tmp_path):
    files_node.files.put(limit_path(1), 2_000_000)
    files_node.files.put(limit_path(1).replace("scaling_max_freq", "bios_limit"), 2_000_000)
    files_node.files.put(limit_path(2), 2_000_000)
    writer = writer_of(files_node, tmp_path)
    assert writer.ceilings.values == {
        "cpu/policy0/max_khz": MAX_KHZ, "cpu/policy2/max_khz": 2_000_000, "cpu/policy3/max_khz": MAX_KHZ,
        LONG_TERM: 150 * W,
    }  # fmt: skip


def test_zero_watts_is_no_limit_and_sets_no_ceiling(files_node, tmp_path):
    set_uw(files_node, 0)
    assert LONG_TERM not in writer_of(files_node, tmp_path).ceilings.values


def test_a_limit_found_above_what_the_hardware_takes_is_set_within_it_and_comes_back_as_found(files_node, tmp_path):
    files_node.files.put(f"{POWERCAP}/intel-rapl:0/constraint_0_max_power_uw", 140 * W)
    set_uw(files_node, 4095 * W)
    writer = writer_of(files_node, tmp_path)
    writer.apply({LONG_TERM: 500 * W})
    assert uw(files_node) == 140 * W
    writer.restore_all()
    assert uw(files_node) == 4095 * W


def test_a_grant_restores_a_limit_to_no_more_than_its_ceiling(files_node, tmp_path):
    writer = writer_of(files_node, tmp_path)
    writer.limit_restores({LONG_TERM: 200 * W, "node/cap_mw": 999})
    assert writer._restore_limits == {LONG_TERM: 150 * W, "node/cap_mw": 999}
    writer.apply({LONG_TERM: 140 * W})
    set_uw(files_node, 80 * W)
    writer.apply({LONG_TERM: 120 * W})
    set_uw(files_node, 300 * W)
    writer.restore_all()
    assert uw(files_node) == 80 * W
    assert read_save(str(tmp_path / "captured.jsonl")).restore_limits == {LONG_TERM: 80 * W, "node/cap_mw": 999}


def test_a_release_is_not_a_value_and_stays():
    assert under({"a": 5}, {"a": 0, "b": 7}) == {"a": 0, "b": 7}
    assert under({"a": 5}, {"a": 9}) == {"a": 5}


# --- over all knobs


def test_every_kind_of_knob_is_a_limit_but_the_preference_and_how_a_card_is_divided():
    without = [kind.name or kind.pattern for kind in KINDS if kind.limit is None]
    assert without == ["gpu/*/mig_layout", "epp/*/preference"]


@dataclass
class Watched:
    """A limit of an emulated node as the rule sees it."""

    knob: Knob
    first: int
    low: int
    highest: int
    strictest: int = 0
    is_foreign: bool = False  # the hardware is at a value that somebody else has set, and nothing of ours since

    def present(self) -> int:
        """Where the hardware is; an unlocked card is at its highest clock."""
        if isinstance(self.knob, ClockLock):
            twin_gpu = self.gpus.gpu[int(self.knob.name.split("/")[1])]
            return int(twin_gpu.lock_max_mhz) or self.highest
        found = self.knob.read_back()
        assert found is not None
        return found

    gpus: object = field(default=None, repr=False)


LOCKED_MHZ = 1095
N_OF_A_KIND = 2


@contextmanager
def every_limit(machine: str) -> Iterator[tuple[InProcess, dict[str, Watched]]]:
    """An idle emulated node, and some limits of every kind that it has."""
    with InProcess(Twin(load_machine(machine))) as inside:
        limits: dict[str, Watched] = {}
        for knob in survey(inside.ports).knobs:
            kind = kind_of(knob.name)
            if not kind or not kind.limit:
                continue
            if sum(kind.has(name) for name in limits) >= N_OF_A_KIND:
                continue
            highest = kind.limit.highest(knob) or int(knob.read())
            one = Watched(knob, 0, highest // 3, highest, gpus=inside.twin.gpus)
            if isinstance(knob, ClockLock):
                knob.baseline_mhz = LOCKED_MHZ
                knob.set(LOCKED_MHZ)
            one.first = one.present()
            limits[knob.name] = one
        yield inside, limits


OURS = -1.0
"""In place of a share: somebody else sets what was ours last, so the knob looks as if nobody had moved it."""

SHARES = st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.625, 0.75, 1.0])
STEP = st.one_of(
    st.tuples(st.just("cap"), st.integers(0, 1), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 2.5])),
    st.tuples(st.just("release"), st.integers(0, 1), st.just(0.0)),
    st.tuples(st.just("grant"), st.integers(0, 1), SHARES),
    st.tuples(st.just("leave"), st.just(0), st.just(0.0)),
    st.tuples(st.just("foreign"), st.integers(0, 1), SHARES),
    st.tuples(st.just("foreign"), st.integers(0, 1), st.just(OURS)),
    st.tuples(st.just("restore"), st.integers(0, 1), st.just(0.0)),
    st.tuples(st.just("restore all"), st.just(0), st.just(0.0)),
    st.tuples(st.just("kill and start"), st.just(0), st.just(0.0)),
)


class Trial:
    """One sequence of steps on one node. Whatever a step of ours changes must be within the rule."""

    def __init__(self, limits: Mapping[str, Watched], save_path: str, first: int = 0) -> None:
        """The steps move two of the limits, ``first`` and the next."""
        self.limits, self.save_path, self.clock, self.first = limits, save_path, StillClock(), first
        self.grants: dict[str, int] = {}
        self.writer = self.start()

    def start(self) -> Writer:
        writer = Writer([one.knob for one in self.limits.values()], self.save_path, BOOT, self.clock)
        writer.start()
        return writer

    def step(self, what: str, at: int, share: float) -> None:
        name = list(self.limits)[(self.first + at) % len(self.limits)]
        one = self.limits[name]
        value = round(one.low + share * (one.highest - one.low))
        self.clock.time_ns += 61 * 10**9  # no step waits for a retry
        if what == "foreign":
            self._by_somebody_else(one, share, value)
            return
        before = {name: limit.present() for name, limit in self.limits.items()}
        captured = set(self.writer.captured)
        looked = {"cap": {name}, "release": {name} & captured, "restore": {name} & captured}.get(what, captured)
        self._by_us(what, name, value)
        for other, limit in self.limits.items():
            present = limit.present()
            if other in looked and limit.is_foreign:
                limit.strictest = min(limit.strictest, before[other])
            if present == before[other]:
                continue
            limit.is_foreign = False
            assert present <= limit.strictest, f"{what} {other}: {before[other]} to {present}"
            assert present <= limit.highest
        if what == "kill and start":
            for other, limit in self.limits.items():
                limit.is_foreign = limit.is_foreign and other in self.writer.captured
                if other not in self.writer.captured and not isinstance(limit.knob, ClockLock):
                    limit.strictest = limit.present()

    def _by_us(self, what: str, name: str, value: int) -> None:
        if what == "cap":
            self.writer.apply({name: value})
        elif what == "release":
            self.writer.apply({name: 0})
        elif what in ("grant", "leave"):
            self.grants = {} if what == "leave" else {**self.grants, name: value}
            self.writer.limit_restores(self.grants)
        elif what == "restore":
            self.writer.restore([name])
        elif what == "restore all":
            self.writer.restore_all()
        else:
            self.writer.close()
            self.writer = self.start()
            self.grants = dict(self.writer.restore_limits)

    def _by_somebody_else(self, one: Watched, share: float, value: int) -> None:
        captured = self.writer._captured.get(one.knob.name)
        ours = last_of_ours(one.knob, captured) if captured else 0
        if isinstance(one.knob, ClockLock) or (share == OURS and not ours):
            return  # nobody could see the lock
        before = one.present()
        one.knob.set(ours if share == OURS else value)
        one.is_foreign = one.is_foreign or one.present() != before
        if ours and one.knob.matches(ours, one.present()):
            one.is_foreign = False  # nothing shows it


@pytest.mark.parametrize("machine", ["skylake-6146", "xh2415", "client"])
def test_no_sequence_of_caps_grants_foreign_writes_and_restores_leaves_a_limit_looser_than_the_strictest(machine):
    with every_limit(machine) as (_, limits):

        @trials(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
        @given(
            firsts=st.lists(SHARES, min_size=8, max_size=8), first=st.integers(0, 7), steps=st.lists(STEP, max_size=40)
        )
        def check_that_none_is_looser(firsts: list[float], first: int, steps: list[tuple[str, int, float]]) -> None:
            with tempfile.TemporaryDirectory() as folder:
                for one, share in zip(limits.values(), firsts, strict=False):
                    is_lock = isinstance(one.knob, ClockLock)
                    one.knob.set(LOCKED_MHZ if is_lock else round(one.low + share * (one.highest - one.low)))
                    one.strictest, one.is_foreign = one.present(), False
                trial = Trial(limits, str(Path(folder) / "captured.jsonl"), first)
                for step in steps:
                    trial.step(*step)
                trial.writer.close()

        check_that_none_is_looser()


def test_a_limit_of_no_known_kind_has_no_ceiling():
    ceilings = Ceilings([])
    assert not ceilings.is_limit("a/limit_mw") and not ceilings.note("a/limit_mw", 5)
    assert ceilings.below("a/limit_mw", "7") is None
