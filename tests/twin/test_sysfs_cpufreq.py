"""cpufreq as the kernel has it: what is accepted, what is in force, and that the clock follows."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twin.files.sysfs_tree import SysfsTree
from twin.machine import MACHINES, load_machine
from twin.physics.model import Twin

POLICY = "/sys/devices/system/cpu/cpufreq/policy0"
BENCH_S = 0.05  # longer than any machine's latency and a governor's period


class Policy:
    """The first frequency domain of a machine, as a user at its files."""

    def __init__(self, machine: str) -> None:
        self.twin = Twin(load_machine(machine))
        self.tree = SysfsTree(self.twin)

    def __getitem__(self, name: str) -> str:
        return self.tree.read(f"{POLICY}/{name}").decode().strip()

    def __setitem__(self, name: str, text: str) -> None:
        assert self.tree.write(f"{POLICY}/{name}", text.encode()) == len(text)

    def errno_of(self, name: str, text: str) -> int:
        with pytest.raises(OSError) as refusal:
            self[name] = text
        assert refusal.value.errno is not None
        return refusal.value.errno


@pytest.fixture
def curie() -> Policy:
    return Policy("curie")


@pytest.fixture
def intel_pstate(tmp_path: Path) -> Policy:
    """The V100's host with intel_pstate in charge instead of the kernel's governors."""
    text = (MACHINES / "v100.toml").read_text()
    governors = 'governors = ["conservative", "ondemand", "userspace", "powersave", "performance", "schedutil"]'
    assert governors in text
    text = text.replace('driver = "intel_cpufreq"', 'driver = "intel_pstate"')
    text = text.replace(governors, 'governors = ["performance", "powersave"]')
    text = text.replace('governor = "schedutil"', 'governor = "powersave"')
    path = tmp_path / "pstate.toml"
    path.write_text(text)
    return Policy(str(path))


def test_a_policy_shows_its_cpus_limits_and_steps(curie: Policy) -> None:
    assert curie["related_cpus"] == "0 1 2 3 4 5 6 7"
    assert curie["cpuinfo_min_freq"] == "1200000"
    assert curie["cpuinfo_max_freq"] == curie["scaling_max_freq"] == "2700000"
    assert curie["cpuinfo_transition_latency"] == "10000"
    assert curie["scaling_driver"] == "acpi-cpufreq"
    steps = [int(khz) for khz in curie["scaling_available_frequencies"].split()]
    assert steps == sorted(steps, reverse=True) and steps[0] == 2_700_000
    assert curie.tree.readlink("/sys/devices/system/cpu/cpu9/cpufreq") == "../cpufreq/policy8"
    assert "base_frequency" not in curie.tree.listdir(POLICY)


@pytest.mark.parametrize(
    ("machine", "policies"), [("client", 8), ("xh2415", 96), ("genoa-h100", 384), ("curie", 2), ("skylake-6146", 24)]
)
def test_each_logical_cpu_has_a_policy_of_its_own_where_the_driver_has_it_so(machine: str, policies: int) -> None:
    tree = SysfsTree(Twin(load_machine(machine)))
    folder = "/sys/devices/system/cpu/cpufreq"
    numbers = [int(name[6:]) for name in tree.listdir(folder) if name.startswith("policy")]
    assert len(numbers) == policies
    own = {number: tree.read(f"{folder}/policy{number}/affected_cpus").decode() for number in numbers}
    assert own == {number: tree.read(f"{folder}/policy{number}/related_cpus").decode() for number in numbers}
    if machine != "curie":  # its two sockets have a clock each, which software coordinates
        assert own == {number: f"{number}\n" for number in numbers}
    last = load_machine(machine).cpus - 1
    assert tree.readlink(f"/sys/devices/system/cpu/cpu{last}/cpufreq") == f"../cpufreq/policy{max(numbers)}"


def test_a_machine_file_may_say_what_has_a_policy(tmp_path: Path) -> None:
    for policy, numbers in (("domain", {"0 4", "1 5", "2 6", "3 7"}), ("cpu", {str(cpu) for cpu in range(8)})):
        text = (MACHINES / "client.toml").read_text()
        path = tmp_path / f"{policy}.toml"
        path.write_text(text.replace('domain = "core"', f'domain = "core"\npolicy = "{policy}"'))
        tree = SysfsTree(Twin(load_machine(str(path))))
        folder = "/sys/devices/system/cpu/cpufreq"
        names = [name for name in tree.listdir(folder) if name.startswith("policy")]
        assert {tree.read(f"{folder}/{name}/related_cpus").decode().strip() for name in names} == numbers


def test_acpi_cpufreq_lists_the_threads_of_a_core_as_those_that_share_its_clock() -> None:
    zen2 = Policy("xh2415")
    assert (zen2["related_cpus"], zen2["freqdomain_cpus"]) == ("0", "0 48")
    assert "freqdomain_cpus" not in Policy("client").tree.listdir(POLICY)


LIMITS = st.sampled_from(range(1_500_000, 2_900_000, 100_000))


@given(
    governors=st.tuples(*[st.sampled_from(["performance", "powersave", "userspace"])] * 2),
    limits=st.tuples(*[st.tuples(LIMITS, LIMITS, LIMITS)] * 2),
)
@settings(max_examples=40, deadline=None)
def test_a_core_runs_at_the_higher_request_of_its_threads(
    governors: tuple[str, str], limits: tuple[tuple[int, int, int], tuple[int, int, int]]
) -> None:
    """Whatever each of them requests: the clock of both is the higher of what each would have alone."""

    def clocks(threads: tuple[int, ...]) -> list[int]:
        tree = SysfsTree(twin := Twin(load_machine("xh2415")))
        for thread in (0, 48):
            folder = f"/sys/devices/system/cpu/cpu{thread}/cpufreq"
            asked = thread if thread in threads else threads[0]
            governor, (low, high, speed) = governors[asked // 48], limits[asked // 48]
            tree.write(f"{folder}/scaling_governor", governor.encode())
            tree.write(f"{folder}/scaling_min_freq", b"%d" % low)
            tree.write(f"{folder}/scaling_max_freq", b"%d" % high)
            if governor == "userspace":
                tree.write(f"{folder}/scaling_setspeed", b"%d" % speed)
        twin.advance(BENCH_S)
        names = [f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}" for cpu in (0, 48) for name in SHOWN_CLOCKS]
        return [int(tree.read(name)) for name in names]

    alone = [clocks((0,))[0], clocks((48,))[0]]
    assert clocks((0, 48)) == [max(alone)] * 4


SHOWN_CLOCKS = ("scaling_cur_freq", "cpuinfo_cur_freq")


def test_a_governor_follows_the_load_of_its_own_cpu_and_the_core_the_busier() -> None:
    client = Policy("client")
    tree, loads = client.tree, [0.0] * 8
    loads[4] = 1.0  # the second thread of core 0
    client.twin.set_load(loads)
    client.twin.advance(1.0)
    shown = [int(tree.read(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq")) for cpu in (0, 4, 1)]
    assert shown == [4_700_000, 4_700_000, 400_000]
    tree.write("/sys/devices/system/cpu/cpu4/cpufreq/scaling_max_freq", b"1500000")
    client.twin.advance(1.0)
    assert int(client["scaling_cur_freq"]) == 1_500_000, "the idle thread, though free, requests the lowest clock"


def test_the_clock_follows_a_lowered_maximum(curie: Policy) -> None:
    for cpu in (0, 15):
        curie.tree.write(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", b"performance\n")
    curie["scaling_max_freq"] = "1500000\n"
    curie.twin.advance(BENCH_S)
    assert curie["scaling_cur_freq"] == "1500000"
    assert curie.tree.read("/sys/devices/system/cpu/cpu15/cpufreq/scaling_cur_freq") == b"2700000\n"


def test_limits_out_of_range_are_clamped_and_not_refused(curie: Policy) -> None:
    curie["scaling_max_freq"] = "9999999"
    assert curie["scaling_max_freq"] == "2700000"
    curie["scaling_min_freq"] = "1"
    assert curie["scaling_min_freq"] == "1200000"


def test_a_driver_with_a_table_rounds_a_maximum_down_and_a_minimum_up(curie: Policy) -> None:
    curie["scaling_max_freq"] = "2350000"
    curie["scaling_min_freq"] = "1310000"
    assert (curie["scaling_min_freq"], curie["scaling_max_freq"]) == ("1400000", "2300000")


def test_a_driver_without_a_table_keeps_what_was_written_and_only_the_clock_is_rounded() -> None:
    policy = Policy("v100")
    policy["scaling_governor"] = "performance"
    policy["scaling_max_freq"] = "1555555"
    assert policy["scaling_max_freq"] == "1555555"
    policy.twin.advance(BENCH_S)
    assert policy["scaling_cur_freq"] == "1500000"


def test_a_maximum_below_the_minimum_drags_it_down_until_it_is_raised_again(curie: Policy) -> None:
    curie["scaling_min_freq"] = "2000000"
    curie["scaling_max_freq"] = "1500000"
    assert (curie["scaling_min_freq"], curie["scaling_max_freq"]) == ("1500000", "1500000")
    curie["scaling_max_freq"] = "2700000"
    assert curie["scaling_min_freq"] == "2000000"
    curie["scaling_max_freq"] = "1800000"
    curie["scaling_min_freq"] = "2600000"
    assert curie["scaling_min_freq"] == "1800000"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("fast", errno.EINVAL),
        ("-1", errno.EINVAL),
        ("3000000000", errno.EINVAL),  # negative as the s32 of a request
        ("2000000 kHz", errno.EINVAL),
        (str(2**64), errno.ERANGE),
    ],
)
def test_nonsense_is_refused_and_changes_nothing(curie: Policy, text: str, number: int) -> None:
    assert curie.errno_of("scaling_max_freq", text) == number
    assert curie["scaling_max_freq"] == "2700000"


def test_an_empty_write_never_reaches_the_store(curie: Policy) -> None:
    assert curie.tree.write(f"{POLICY}/scaling_max_freq", b"") == 0


def test_setspeed_works_under_the_userspace_governor_only(curie: Policy) -> None:
    assert curie["scaling_setspeed"] == "<unsupported>"
    assert curie.errno_of("scaling_setspeed", "1500000") == errno.EINVAL
    curie["scaling_governor"] = "userspace"
    curie["scaling_setspeed"] = "1710000"
    assert curie["scaling_setspeed"] == "1800000"  # the next table entry upwards
    curie.twin.advance(BENCH_S)
    assert curie["scaling_cur_freq"] == "1800000"
    curie["scaling_max_freq"] = "1400000"
    curie.twin.advance(BENCH_S)
    assert curie["scaling_cur_freq"] == "1400000"


def test_the_userspace_governor_begins_at_the_present_clock(curie: Policy) -> None:
    curie["scaling_governor"] = "performance"
    curie["scaling_max_freq"] = "2000000"
    curie.twin.advance(BENCH_S)
    curie["scaling_governor"] = "userspace"
    assert curie["scaling_setspeed"] == "2000000"


def test_an_unknown_governor_is_einval(curie: Policy) -> None:
    assert curie.errno_of("scaling_governor", "turbo") == errno.EINVAL
    assert curie["scaling_governor"] == "ondemand"
    assert curie["scaling_available_governors"].split()[:2] == ["conservative", "ondemand"]


def test_files_without_write_permission_answer_eacces_to_root_too(curie: Policy) -> None:
    assert curie.errno_of("cpuinfo_max_freq", "1") == errno.EACCES
    assert curie.tree.mode(f"{POLICY}/cpuinfo_max_freq") == 0o444
    assert curie.tree.mode(f"{POLICY}/scaling_max_freq") == 0o644
    assert curie.tree.mode(f"{POLICY}/cpuinfo_cur_freq") == 0o400


def test_intel_pstate_has_two_governors_of_its_own_and_no_table(intel_pstate: Policy) -> None:
    assert intel_pstate["scaling_available_governors"] == "performance powersave"
    assert intel_pstate.errno_of("scaling_governor", "userspace") == errno.EINVAL
    assert intel_pstate["base_frequency"] == "2100000"
    assert intel_pstate["cpuinfo_transition_latency"] == "0"
    assert "scaling_available_frequencies" not in intel_pstate.tree.listdir(POLICY)


def test_the_performance_governor_of_intel_pstate_fixes_the_energy_preference(intel_pstate: Policy) -> None:
    intel_pstate["energy_performance_preference"] = "power"
    assert intel_pstate["energy_performance_preference"] == "power"
    assert intel_pstate.errno_of("energy_performance_preference", "green") == errno.EINVAL
    intel_pstate["scaling_governor"] = "performance"
    assert intel_pstate["energy_performance_preference"] == "performance"
    assert intel_pstate.errno_of("energy_performance_preference", "power") == errno.EBUSY


def prefer(tree: SysfsTree, word: str, *threads: int) -> None:
    for thread in threads:
        tree.write(f"/sys/devices/system/cpu/cpu{thread}/cpufreq/energy_performance_preference", word.encode())


@pytest.mark.parametrize(
    ("word", "khz"),
    [("performance", 4_700_000), ("default", 4_700_000), ("balance_power", 3_700_000), ("power", 2_800_000)],
)
def test_an_energy_preference_lowers_the_clock_that_the_hardware_chooses_and_its_watts(word: str, khz: int) -> None:
    client, watts = Policy("client"), []
    client.twin.set_load([1.0] + [0.0] * 7)
    for preference in ("default", word):
        prefer(client.tree, preference, *range(8))
        client.twin.advance(1.0)
        before_j = client.twin.node_j
        client.twin.advance(1.0)
        watts.append(client.twin.node_j - before_j)
    assert int(client["scaling_cur_freq"]) == khz
    assert watts[1] < 0.8 * watts[0] if khz < 4_700_000 else watts[1] == pytest.approx(watts[0], rel=0.02)


def test_intel_drivers_take_a_preference_as_a_number_and_show_its_name_if_it_has_one() -> None:
    client = Policy("client")
    client.twin.set_load([1.0] + [0.0] * 7)
    for text, shown, khz in (("255", "power", 2_800_000), ("160\n", "160", 4_200_000), ("0", "performance", 4_700_000)):
        client["energy_performance_preference"] = text
        client.twin.advance(0.1)
        assert (client["energy_performance_preference"], int(client["scaling_cur_freq"])) == (shown, khz)
    assert client.errno_of("energy_performance_preference", "256") == errno.EINVAL
    assert client.errno_of("energy_performance_preference", "0x10") == errno.EINVAL
    client["scaling_governor"] = "performance"
    assert client.errno_of("energy_performance_preference", "1") == errno.EBUSY
    client["energy_performance_preference"] = "0"
    assert Policy("genoa-h100").errno_of("energy_performance_preference", "128") == errno.EINVAL


def test_of_two_threads_preferences_the_choice_for_the_busy_one_counts() -> None:
    client = Policy("client")
    prefer(client.tree, "power", 0)
    client.twin.set_load([1.0] + [0.0] * 7)
    client.twin.advance(1.0)
    assert client["scaling_cur_freq"] == "2800000", "the other thread is idle: it requests the lowest clock"
    client.twin.set_load([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    client.twin.advance(1.0)
    assert client["scaling_cur_freq"] == "4700000"


def test_a_lowest_clock_and_the_performance_governor_have_precedence_over_the_preference() -> None:
    client = Policy("client")
    client.twin.set_load([1.0] + [0.0] * 7)
    prefer(client.tree, "power", 0)
    client["scaling_min_freq"] = "3500000"
    client.twin.advance(0.1)
    assert client["scaling_cur_freq"] == "3500000"
    client["scaling_governor"] = "performance"
    client.twin.advance(0.1)
    assert client["scaling_cur_freq"] == "4700000"


def test_a_preference_without_a_law_in_the_machine_file_changes_nothing(intel_pstate: Policy) -> None:
    intel_pstate.twin.set_load([1.0] * 8)
    intel_pstate["energy_performance_preference"] = "power"
    intel_pstate.twin.advance(1.0)
    assert intel_pstate["scaling_cur_freq"] == "3000000"


def test_turbo_off_and_a_per_cent_limit_lower_every_clock_of_intel_pstate(intel_pstate: Policy) -> None:
    intel_pstate["scaling_governor"] = "performance"
    switches = "/sys/devices/system/cpu/intel_pstate"
    intel_pstate.tree.write(f"{switches}/no_turbo", b"1")
    intel_pstate.twin.advance(BENCH_S)
    assert intel_pstate["scaling_cur_freq"] == intel_pstate["scaling_max_freq"] == "2100000"
    intel_pstate.tree.write(f"{switches}/no_turbo", b"0")
    intel_pstate.tree.write(f"{switches}/max_perf_pct", b"50")
    intel_pstate.twin.advance(BENCH_S)
    assert intel_pstate["scaling_cur_freq"] == "1500000"
    assert intel_pstate["scaling_max_freq"] == "3000000"
    with pytest.raises(OSError) as refusal:
        intel_pstate.tree.write(f"{switches}/status", b"passive\n")
    assert refusal.value.errno == errno.EBUSY


def test_acpi_boost_off_enforces_the_base_clock_behind_an_unchanged_limit() -> None:
    taurus = Policy("taurus")
    taurus.twin.advance(BENCH_S)
    assert (taurus["scaling_cur_freq"], taurus["scaling_max_freq"]) == ("2600000", "2301000")  # turbo's name and clock
    taurus.tree.write("/sys/devices/system/cpu/cpufreq/boost", b"0\n")
    taurus.twin.advance(BENCH_S)
    assert (taurus["scaling_cur_freq"], taurus["scaling_max_freq"]) == ("2300000", "2301000")


def test_amd_pstate_names_its_mode_and_boost_lowers_the_limits() -> None:
    genoa = Policy("genoa-h100")
    assert genoa["scaling_driver"] == "amd-pstate-epp"
    assert genoa.tree.read("/sys/devices/system/cpu/amd_pstate/status") == b"active\n"
    genoa.tree.write("/sys/devices/system/cpu/cpufreq/boost", b"0")
    genoa.twin.advance(BENCH_S)
    assert genoa["scaling_max_freq"] == genoa["cpuinfo_max_freq"] == str(genoa.tree.policies[0].domain.base_khz)
    assert int(genoa["scaling_cur_freq"]) <= genoa.tree.policies[0].domain.base_khz


def test_amd_firmware_reports_the_nominal_clock_of_each_cpu() -> None:
    tree = Policy("genoa-h100").tree
    assert tree.read("/sys/devices/system/cpu/cpu383/acpi_cppc/nominal_freq") == b"2400\n"
    assert tree.read("/sys/devices/system/cpu/cpu383/acpi_cppc/highest_perf") == b"255\n"


def test_every_domain_of_controlpulp_has_a_policy_of_nine_cpus() -> None:
    tree = Policy("controlpulp").tree
    folder = "/sys/devices/system/cpu/cpufreq"
    policies = [name for name in tree.listdir(folder) if name.startswith("policy")]
    assert [len(tree.read(f"{folder}/{name}/related_cpus").split()) for name in policies] == [9] * 4


@pytest.mark.parametrize("name", ["scaling_max_freq", "scaling_min_freq"])
def test_every_accepted_limit_lies_between_the_hardware_s(curie: Policy, name: str) -> None:
    limits: Callable[[], tuple[int, int]] = curie.tree.policies[0].limits_khz
    for khz in range(0, 4_000_000, 137_000):
        curie[name] = str(khz)
        low, high = limits()
        assert 1_200_000 <= low <= high <= 2_700_000
