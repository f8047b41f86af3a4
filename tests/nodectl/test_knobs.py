"""Every kind of knob on the emulated node: the real pynvml, the kernel's refusals, and clocks that follow or do not."""

import pytest

from nodectl.knobs import EffectWatch, KnobError, find_knobs, open_knob
from nodectl.knobs.attribute_file import NumberFile
from nodectl.knobs.registry import KINDS
from nodectl.write.device_names import saved_name
from nodectl.write.saves import read_save
from nodectl.write.writer import Writer
from pmu.decode import decode
from pmu.node import Instruments, discover
from tests.nodectl.file_tree import POWERCAP, RootedFiles, file_node
from twin.faults.active import Fault
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

POLICY0 = "/sys/devices/system/cpu/cpufreq/policy0"
CLOCK = "cpu/policy0/max_khz"
LOCK = "gpu/0/sm_clock_mhz"
BOARD = "gpu/0/power_limit_mw"
LONG_TERM = "rapl/package-0/long_term_uw"


class Bench:
    """One emulated node under load, with a writer and a watch, advanced tick by tick."""

    def __init__(self, machine, workload, tmp_path):
        loaded = load_machine(machine)
        self.twin = Twin(loaded, load_workload(workload, loaded, duration_s=1000.0))
        self.node = InProcess(self.twin)
        self.ports = self.node.ports
        self.save_path = str(tmp_path / "captured.jsonl")
        self.layout, _ = discover(self.ports)
        self.knobs, self.findings = find_knobs(self.ports, self.layout)
        self.writer = Writer(self.knobs, self.save_path, "boot", self.ports.clock)
        self.writer.start()
        self.watch = EffectWatch(self.knobs, self.layout)
        self.instruments = Instruments(self.ports, self.layout)
        self.run(0.5)
        self.previous = self.instruments.sweep()

    def run(self, seconds):
        self.ports.clock.sleep_until_ns(self.ports.clock.now_ns() + round(seconds * 1e9))

    def write(self, **settings):
        wish = {name.replace("__", "/"): value for name, value in settings.items()}
        return self.set(wish)

    def set(self, wish):
        outcomes = self.writer.apply(wish)
        self.watch.wrote(outcomes, wish, self.ports.clock.now_ns())
        return {outcome.knob: outcome for outcome in outcomes}

    def see(self, ticks=20, period_s=0.1):
        """Judge the effect over some ticks; all outcomes."""
        seen = []
        for _ in range(ticks):
            self.run(period_s)
            sweep = self.instruments.sweep()
            self.sample = decode(self.layout, self.previous, sweep)
            self.previous = sweep
            seen += self.watch.judge(self.sample)
        return seen

    def in_save(self, name):
        return saved_name(next(knob for knob in self.knobs if knob.name == name))

    def fault(self, kind, target, value=None, **times):
        self.node.faults.add(Fault(kind, target, value=value, **times))


@pytest.fixture
def bench(tmp_path):
    benches = []

    def make(machine, workload):
        benches.append(Bench(machine, workload, tmp_path))
        return benches[-1]

    yield make
    for made in benches:
        made.instruments.close()
        made.writer.close()
        made.node.close()


def value(bench, path):
    return int(bench.ports.files.read(path))


def test_the_knobs_of_a_node_are_its_clock_limits_its_gpus_and_its_packages(bench):
    node = bench("xh2415", "easywave")
    names = [knob.name for knob in node.knobs]
    assert len(names) == 96 + 3 * len(node.layout.gpus)  # a limit per thread; AMD packages cannot be limited
    assert {"cpu/policy0/max_khz", "cpu/policy95/max_khz", "gpu/3/sm_clock_mhz", "gpu/3/power_limit_mw"} <= set(names)
    rapl = next(row for row in node.findings if row.name == LONG_TERM)
    assert (rapl.present, rapl.writable) == (False, False) and "no long_term limit for package-0" in rapl.why
    lock = next(row for row in node.findings if row.name == LOCK)
    assert lock.writable and not lock.readable and "NVML cannot say whether clocks are locked" in lock.why


def test_every_knob_is_found_again_by_its_name(bench):
    node = bench("curie", "hpl")
    for knob in node.knobs:
        again = open_knob(node.ports, knob.name)
        assert again.read() == knob.read() and again.name == knob.name


@pytest.mark.parametrize("machine", ["client", "curie", "xh2415"])
def test_every_knob_of_a_node_is_of_one_kind(bench, machine):
    node = bench(machine, "hpl")
    for row in node.findings:
        assert [kind.has(row.name) for kind in KINDS].count(True) == 1, row.name


def test_a_knob_whose_effect_no_sample_shows_is_not_waited_for(bench):
    node = bench("skylake-6146", "hpl")
    name = "uncore/package_00_die_00/max_khz"
    assert node.set({name: 1_800_000})[name].status == "written"
    assert not node.watch._pending.any() and node.see(3) == []


@pytest.mark.parametrize("name", ["cpu/policy99/max_khz", "gpu/0/sm_clock_mhz", "rapl/package-7/long_term_uw"])
def test_a_knob_that_is_not_there_has_vanished(tmp_path, name):
    with pytest.raises(KnobError) as error:
        open_knob(file_node(tmp_path), name)
    assert error.value.status == "vanished"


def test_a_name_of_no_kind_is_refused_with_the_name(tmp_path):
    with pytest.raises(KnobError, match="'fan/0/rpm'"):
        open_knob(file_node(tmp_path), "fan/0/rpm")


def test_a_clock_limit_is_written_read_back_and_followed(bench):
    node = bench("curie", "hpl")
    assert node.set({CLOCK: 1_800_000})[CLOCK].status == "written"
    assert value(node, f"{POLICY0}/scaling_max_freq") == 1_800_000
    assert node.see() == []
    assert node.sample.cpu.frequency_khz[0] <= 1_800_000 * 1.01
    node.writer.restore_all()
    assert value(node, f"{POLICY0}/scaling_max_freq") == node.layout.domains[0].max_khz


@pytest.mark.parametrize("asked_khz", [1_592_212, 999_999])
def test_a_limit_between_two_steps_of_a_driver_that_lists_none_is_followed_at_the_lower(bench, asked_khz):
    node = bench("client", "hpl")
    assert node.set({CLOCK: asked_khz})[CLOCK].status == "written"
    assert node.see(5) == []
    assert node.sample.cpu.frequency_khz[0] == pytest.approx(asked_khz // 100_000 * 100_000, rel=0.01)


def test_the_governor_is_left_as_it_is(bench):
    node = bench("curie", "hpl")
    before = node.ports.files.read(f"{POLICY0}/scaling_governor")
    node.set({CLOCK: 1_800_000})
    assert node.ports.files.read(f"{POLICY0}/scaling_governor") == before


def test_a_clock_that_stays_above_its_limit_is_a_missing_effect_of_the_firmware(bench):
    node = bench("curie", "hpl")
    node.fault("no-effect", f"{POLICY0}/scaling_max_freq", value="shown")
    assert node.set({CLOCK: 1_400_000})[CLOCK].status == "written"
    (seen,) = node.see()
    assert (seen.status, seen.reason) == ("no-effect", "firmware")
    assert seen.detail.startswith("requested 1400000 kHz, ")


def test_a_clock_kept_low_by_its_governor_names_the_governor(bench):
    node = bench("curie", "hpl")
    node.set({CLOCK: 1_400_000})
    node.see(5)
    node.ports.files.write(f"{POLICY0}/scaling_governor", "powersave")
    node.set({CLOCK: 2_400_000})
    (seen,) = node.see()
    assert (seen.status, seen.reason) == ("no-effect", "governor")
    assert "powersave" in seen.detail


def test_a_limit_moved_by_somebody_else_shows_as_a_foreign_writer(bench):
    node = bench("curie", "hpl")
    node.set({CLOCK: 1_400_000})
    node.ports.files.write(f"{POLICY0}/scaling_max_freq", "2300000")
    (seen,) = node.see()
    assert (seen.status, seen.reason) == ("no-effect", "foreign writer")


def test_an_idle_cpu_is_not_blamed_for_a_low_clock(bench, tmp_path):
    loaded = load_machine("curie")
    twin = Twin(loaded)
    with InProcess(twin) as node:
        layout, _ = discover(node.ports)
        knobs, _ = find_knobs(node.ports, layout)
        watch = EffectWatch(knobs, layout)
        writer = Writer(knobs, str(tmp_path / "save"), "boot", node.ports.clock)
        writer.apply({CLOCK: 1_400_000})
        outcomes = writer.apply({CLOCK: 2_400_000})
        watch.wrote(outcomes, {CLOCK: 2_400_000}, node.ports.clock.now_ns())
        instruments = Instruments(node.ports, layout)
        previous = instruments.sweep()
        for _ in range(5):
            node.ports.clock.sleep_until_ns(node.ports.clock.now_ns() + 100_000_000)
            sweep = instruments.sweep()
            assert watch.judge(decode(layout, previous, sweep)) == []
            previous = sweep
        instruments.close()


def test_a_clock_out_of_range_is_refused_by_the_kernel_or_clipped_to_its_bound(bench):
    outcome = bench("curie", "hpl").set({CLOCK: 1})[CLOCK]
    assert outcome.status in ("refused", "no-effect") and outcome.detail


def test_a_clock_lock_is_followed_and_unlocked_at_the_end(bench):
    node = bench("xh2415", "easywave")
    assert node.set({LOCK: 1095})[LOCK].status == "written"
    assert node.see(30) == []
    assert node.sample.gpu.sm_clock_mhz[0] <= 1095
    assert node.twin.gpus.gpu[0].lock_max_mhz == 1095
    assert read_save(node.save_path).knobs[node.in_save(LOCK)].value == "unlocked"
    (outcome,) = node.writer.restore_all()
    assert (outcome.status, outcome.detail) == ("restored", "unlocked; where it was cannot be read (no getter)")
    assert node.twin.gpus.gpu[0].lock_max_mhz == 0


def test_zero_unlocks_a_gpu(bench):
    node = bench("xh2415", "easywave")
    node.set({LOCK: 1095})
    assert node.set({LOCK: 0})[LOCK].status == "restored"
    assert node.twin.gpus.gpu[0].lock_max_mhz == 0


def test_a_lock_without_effect_is_seen_on_the_clock(bench):
    node = bench("xh2415", "easywave")
    node.fault("no-effect", "gpu:0")
    assert node.set({LOCK: 1095})[LOCK].status == "written"
    (seen,) = node.see(30)
    assert (seen.status, seen.reason) == ("no-effect", "firmware")


def test_a_driver_that_refuses_is_an_outcome(bench):
    node = bench("xh2415", "easywave")
    node.fault("refused", "gpu:0")
    outcomes = node.set({LOCK: 1095, BOARD: 300_000, "gpu/1/sm_clock_mhz": 1095})
    assert [outcome.status for outcome in outcomes.values()] == ["refused", "refused", "written"]
    assert "root" in outcomes[LOCK].detail


def test_a_lost_gpu_has_vanished_and_stays_in_the_save(bench):
    node = bench("xh2415", "easywave")
    node.set({LOCK: 1095, "gpu/1/sm_clock_mhz": 1095})
    node.fault("gpu-lost", "gpu:0")
    node.run(0.1)
    outcomes = {outcome.knob: outcome.status for outcome in node.writer.restore_all()}
    assert outcomes == {LOCK: "vanished", "gpu/1/sm_clock_mhz": "restored"}
    assert list(read_save(node.save_path).knobs) == [node.in_save(LOCK)]


def test_a_board_limit_is_captured_enforced_and_put_back(bench):
    node = bench("xh2415", "easywave")
    captured = open_knob(node.ports, BOARD).read()
    assert node.set({BOARD: 250_000})[BOARD].status == "written"
    assert open_knob(node.ports, BOARD).read_back() == 250_000
    assert node.see(20) == []
    node.writer.restore_all()
    assert open_knob(node.ports, BOARD).read() == captured


def test_a_board_limit_out_of_range_is_refused(bench):
    outcome = bench("xh2415", "easywave").set({BOARD: 1})[BOARD]
    assert outcome.status == "refused" and "1 mW" in outcome.detail


def test_a_package_limit_is_rounded_to_its_eighth_of_a_watt_and_kept(bench):
    node = bench("curie", "hpl")
    assert node.set({LONG_TERM: 60_000_001})[LONG_TERM].status == "written"
    assert node.see(60, period_s=0.5) == []  # its time window is 10 s
    assert node.sample.energy_j[0] / node.sample.elapsed_s < 63
    node.writer.restore_all()
    assert node.writer.captured == {}


@pytest.mark.parametrize(("machine", "workload", "limit", "value"), [
    ("curie", "stream", LONG_TERM, 120_000_000), ("xh2415", "hpcg", BOARD, 400_000),
])  # fmt: skip
def test_who_draws_less_than_its_limit_keeps_it(bench, machine, workload, limit, value):
    node = bench(machine, workload)
    assert node.set({limit: value})[limit].status == "written"
    assert node.see(60, period_s=0.5) == []


def test_a_late_lock_bit_shows_at_the_write_and_is_named(bench):
    node = bench("curie", "hpl")
    node.fault("locked", f"{POWERCAP}/intel-rapl:0/constraint_0_power_limit_uw", value="late")
    outcome = node.set({LONG_TERM: 60_000_000})[LONG_TERM]
    assert outcome.status in ("refused", "no-effect")
    assert outcome.status == "no-effect" or outcome.reason == "lock bit"


def test_a_known_lock_is_found_before_any_write(bench, tmp_path):
    node = bench("curie", "hpl")
    node.fault("locked", f"{POWERCAP}/intel-rapl:0/constraint_0_power_limit_uw", value="known")
    knobs, findings = find_knobs(node.ports, node.layout)
    row = next(row for row in findings if row.name == LONG_TERM)
    assert row.locked and not row.writable and "locked by the firmware" in row.why
    assert LONG_TERM not in [knob.name for knob in knobs]


def test_a_limit_above_its_memory_mapped_twin_is_reported_at_once(bench):
    node = bench("client", "hpl")
    mmio_uw = value(node, f"{POWERCAP}/intel-rapl-mmio:0/constraint_0_power_limit_uw")
    above = node.set({LONG_TERM: mmio_uw + 5_000_000})[LONG_TERM]
    assert (above.status, above.reason) == ("no-effect", "second RAPL interface")
    assert str(mmio_uw) in above.detail
    assert node.set({LONG_TERM: mmio_uw - 5_000_000})[LONG_TERM].status == "written"
    row = next(row for row in node.findings if row.name == LONG_TERM)
    assert "intel-rapl-mmio" in row.why


def test_a_value_is_judged_once_and_only_after_its_latency(bench):
    node = bench("curie", "hpl")
    node.fault("no-effect", f"{POLICY0}/scaling_max_freq", value="shown")
    node.set({CLOCK: 1_400_000})
    assert node.see(1, period_s=0.01) == []
    assert len(node.see(10)) == 1
    assert node.see(10) == []


def test_a_knob_of_ones_own_is_told_in_its_own_unit(tmp_path):
    class Bias(NumberFile):
        unit = "bias"

    files = RootedFiles(tmp_path)
    files.put("/sys/bias", "often")
    knob = Bias(files, "/sys/bias")
    assert knob.shown(6) == "6 bias"
    with pytest.raises(KnobError, match="'often', not a number of bias"):
        knob.read()
