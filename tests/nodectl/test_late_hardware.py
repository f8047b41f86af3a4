"""Hardware that comes while a run lasts: drivers, cards, zones, CPUs and policies that are there later, or again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foundation.shell.settings import ConfigError
from nodectl.config import Config
from nodectl.journal import open_journal
from nodectl.journal.decide_again import replay
from nodectl.loop.agent import Agent
from nodectl.loop.hardware_watch import Patience
from nodectl.loop.notices import Notices
from nodectl.loop.whole_run import WholeRun
from nodectl.member.cluster_cap import ClusterCap
from nodectl.member.declared import CapController, problems
from pmu.node import discover
from pmu.ports import Ports
from tests.nodectl.test_agent import MAX_FREQ, fixed, fixed_gpu, limit_khz, lock_mhz, node, settings
from tests.nodectl.test_cluster_cap import CLUSTER, Wire
from twin.faults.active import Fault
from twin.in_process_node import InProcess

S = 1_000_000_000
PCI = "/sys/bus/pci/devices/0000:{:02x}:00.0"
CPUFREQ = "/sys/devices/system/cpu/cpufreq"


def gone(path: str, at_s: float = 0.0, for_s: float = 4.0) -> Fault:
    """The device of this folder is not there for a while."""
    return Fault("missing", path, at_s=at_s, for_s=for_s, value="ENOENT")


def without_driver(inside: InProcess) -> Callable[[], Ports]:
    """The ports of a process that begins now; NVML is tried as on a real machine."""
    pynvml = inside.ports.nvml

    def load() -> tuple[Any | None, str]:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return None, f"NVML does not start: {error}"
        return pynvml, ""

    def ports() -> Ports:
        nvml, why = load()
        return replace(inside.ports, nvml=nvml, nvml_why=why, nvml_again=load)

    return ports


@contextmanager
def whole_run(
    inside: InProcess, config: Config, cluster: ClusterCap | None = None, ports: Callable[[], Ports] | None = None
) -> Iterator[tuple[WholeRun, list[str]]]:
    said: list[str] = []
    now = ports or (lambda: inside.ports)
    clock = inside.ports.clock

    def open_agent(notices: Notices, patience: Patience, is_next: bool) -> Agent:
        return Agent.open(now(), config, cluster=cluster, notices=notices, patience=patience)

    with WholeRun(clock, said.append, open_agent) as run:
        yield run, said


def go_on(run: WholeRun, inside: InProcess, seconds: float) -> None:
    run.run(until_ns=inside.twin.time_ns + round(seconds * S))


def test_a_driver_that_is_up_after_the_agent_gets_its_cards_into_the_same_run(tmp_path: Path) -> None:
    with node("xh2415", "easywave", Fault("no-driver", "gpu:*", for_s=4.0)) as inside:
        config = settings(tmp_path, gpu_policy=fixed_gpu(1095))
        with whole_run(inside, config, ports=without_driver(inside)) as (run, said):
            go_on(run, inside, 3.0)
            assert run.agent.layout.gpus == () and "4 GPUs are on the PCI bus and not in NVML" in run.status()
            (alarm,) = [line for line in said if line.startswith("ALARM")]
            assert "4 GPUs are on the PCI bus and not in NVML (0000:07:00.0, 0000:17:00.0" in alarm
            go_on(run, inside, 12.0)
            assert len(run.agent.layout.gpus) == 4 and [lock_mhz(inside, n) for n in range(4)] == [1095] * 4
            assert "TROUBLE" not in run.status()
            assert [line for line in said if "NVML shows GPU-" in line and "begins again with all of it" in line]
        assert [lock_mhz(inside, n) for n in range(4)] == [0] * 4
        boards = {one.name: one for one in run.summary().energy if one.side == "gpu"}
        assert len(boards) == 4 and 4.0 < boards["gpu-0"].missing_s < 12.0, "its energy of before is not known"
        assert run.summary().elapsed_s == pytest.approx(15.0, abs=0.5)


def test_a_node_counts_with_its_tdp_while_nobody_reads_a_card_on_its_bus(tmp_path: Path) -> None:
    tdp = {**CLUSTER, "tdp_w": 2400.0, "mop_w": 800.0, "safe_w": 900.0, "boot_w": 1000.0}
    with node("xh2415", "easywave", Fault("no-driver", "gpu:*", for_s=4.0)) as inside:
        config = settings(
            tmp_path, cluster=tdp, caps={"rest_w": 150.0}, cpu_policy={"name": "none"}, gpu_policy={"name": "none"}
        )
        wire, clock = Wire(), inside.ports.clock
        wire.on_wait = lambda: clock.sleep_until_ns(clock.now_ns() + S // 20)
        link = ClusterCap(config.cluster, wire, "boot-1", now_ns=inside.ports.clock.now_ns)  # type: ignore[arg-type]
        with whole_run(inside, config, link, without_driver(inside)) as (run, _):
            for second in range(15):
                if wire.sent:
                    wire.grant(1000.0, second + 1)
                go_on(run, inside, 1.0)
                if second == 2:
                    assert {report.power_mw for report in wire.sent} == {2_400_000}, "not the 247 W that it reads"
                    assert {report.limit_mw for report in wire.sent} == {2_400_000}, "no cap is in force"
                    assert {report.useful_mw for report in wire.sent} == {-1}
            limits = [inside.twin.gpus.gpu[n].power_limit_mw for n in range(4)]
            assert all(limit < 400_000 for limit in limits), "a cap holds its cards, too"
            assert wire.sent[-1].limit_mw == 1_000_000 and wire.sent[-1].power_mw < 1_020_000


def test_a_lease_does_not_lapse_while_a_run_begins_again(tmp_path: Path) -> None:
    """Its last grant is two seconds old, and to find everything takes four on a busy node: the lease is of five."""
    tdp = {**CLUSTER, "tdp_w": 2400.0, "mop_w": 800.0, "safe_w": 900.0, "boot_w": 1000.0}
    with node("xh2415", "easywave", gone(PCI.format(0x37), for_s=3.0)) as inside:
        config = settings(
            tmp_path, cluster=tdp, caps={"rest_w": 150.0}, cpu_policy={"name": "none"}, gpu_policy={"name": "none"}
        )
        wire, clock, said = Wire(), inside.ports.clock, list[str]()
        link = ClusterCap(config.cluster, wire, "boot-1", said.append, clock.now_ns)  # type: ignore[arg-type]
        sequence = itertools.count(1)

        def answer() -> None:
            clock.sleep_until_ns(clock.now_ns() + S // 20)
            wire.grant(1000.0, next(sequence))

        wire.on_wait = answer
        with whole_run(inside, config, link) as (run, _):
            go_on(run, inside, 2.0)
            wire.grant(1000.0, next(sequence))
            go_on(run, inside, 2.0)
            run.agent.more_hardware, opened = "a card came", run._open

            def slowly(*given: Any) -> Agent:
                clock.sleep_until_ns(clock.now_ns() + 4 * S)
                return opened(*given)

            run._open = slowly
            run._begin_again()
            go_on(run, inside, 0.5)
        assert not [line for line in said if "the lease is over" in line]


def test_cards_that_the_settings_leave_out_are_neither_counted_nor_alarmed(tmp_path: Path) -> None:
    with node("xh2415", "easywave", Fault("no-driver", "gpu:*")) as inside:
        config = settings(
            tmp_path, cpu_policy=fixed(1_500_000), gpu={"locked_clock_mhz": 0, "absent": ["0000:*7:00.0"]}
        )
        with whole_run(inside, config, ports=without_driver(inside)) as (run, said):
            go_on(run, inside, 11.0)
            assert "healthy" in run.status() and not [line for line in said if "ALARM" in line]
    declared = settings(tmp_path, cluster=CLUSTER, gpu={"absent": ["0000:07:00.0"]})
    with node("xh2415", "easywave", Fault("no-driver", "gpu:*")) as inside:
        ports = without_driver(inside)()
        layout, findings = discover(ports)
        lines = [line for line in problems(declared, layout, ports.files, CapController()) if line.startswith("GPU ")]
        assert [line[:16] for line in lines] == ["GPU 0000:17:00.0", "GPU 0000:27:00.0", "GPU 0000:37:00.0"]
        assert next(row.name for row in findings if row.name.startswith("pci-")) == "pci-0000:07:00.0"


@pytest.mark.parametrize("pattern", ["0", "gpu0", "", "GPU-1"])
def test_a_pattern_that_can_name_no_card_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ConfigError, match="no PCI address"):
        settings(tmp_path, gpu={"absent": [pattern]})


def test_a_card_that_is_plugged_in_later_is_an_alarm_until_it_is_read(tmp_path: Path) -> None:
    with node("xh2415", "easywave", gone(PCI.format(0x37)), Fault("gpu-lost", "gpu:3", for_s=9.0)) as inside:
        config = settings(tmp_path, gpu_policy=fixed_gpu(1095))
        with whole_run(inside, config) as (run, said):
            go_on(run, inside, 3.0)
            assert len(run.agent.layout.gpus) == 3 and "not in NVML" not in run.status()
            go_on(run, inside, 5.0)
            assert "a GPU is on the PCI bus and not in NVML (0000:37:00.0)" in run.status()
            assert len([line for line in said if line.startswith("ALARM: a GPU is on the PCI bus")]) == 1


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/sys/class/powercap/intel-rapl:1", "RAPL zone intel-rapl:1"),
        ("/sys/class/hwmon/hwmon0", "hwmon chip hwmon0"),
        (f"{CPUFREQ}/policy7", "cpufreq policy7"),
    ],
)
@pytest.mark.parametrize("at_s", [0.0, 3.0])
def test_what_the_kernel_shows_later_or_again_is_used_by_the_same_run(
    tmp_path: Path, path: str, what: str, at_s: float
) -> None:
    with node("taurus" if "policy" not in path else "xh2415", "hpl", gone(path, at_s, 6.0)) as inside:
        whole, _ = discover(inside.ports) if at_s else (None, None)
        with whole_run(inside, settings(tmp_path, cpu_policy=fixed(1_500_000))) as (run, said):
            go_on(run, inside, 18.0)
            assert len([line for line in said if line.startswith(what) and "begins again" in line]) == 1, said
            layout, _ = discover(inside.ports)
            assert run.agent.layout.zones == layout.zones and run.agent.layout.columns == layout.columns
            assert [one.policies for one in run.agent.layout.domains] == [one.policies for one in layout.domains]
            assert whole is None or whole.zones == layout.zones
            clocks = {int(inside.ports.files.read(MAX_FREQ.format(n))) for one in layout.domains for n in one.policies}
            assert clocks == {1_500_000}


def test_a_run_that_has_begun_again_replays_to_the_same_bytes(tmp_path: Path) -> None:
    with node("xh2415", "easywave", Fault("no-driver", "gpu:*", for_s=4.0)) as inside:
        config = settings(tmp_path, cpu_policy={"name": "bdpo-cpu-bounded"}, gpu_policy={"name": "bdpo-gpu"})
        with whole_run(inside, config, ports=without_driver(inside)) as (run, _):
            go_on(run, inside, 15.0)
        report = replay(open_journal(config.journal_dir))
    assert report.is_equal and report.problems == []
    assert set(report.policies) == {"bdpo-cpu-bounded", "bdpo-gpu"}
    assert {len(record.raw.gpu) for record in open_journal(config.journal_dir)} == {0, 4}


def test_hardware_that_comes_and_goes_all_the_time_does_not_keep_a_run_from_working(tmp_path: Path) -> None:
    faults = [gone("/sys/class/hwmon/hwmon0", at_s, 6.0) for at_s in range(3, 120, 12)]
    with node("taurus", "hpl", *faults) as inside:
        with whole_run(inside, settings(tmp_path, cpu_policy=fixed(1_500_000))) as (run, said):
            go_on(run, inside, 120.0)
            assert limit_khz(inside) == 1_500_000
        begun = [line for line in said if "begins again" in line]
        assert 2 <= len(begun) <= 5, "each wait is twice the last one"


def test_a_sensor_that_only_fails_is_no_reason_to_begin_again(tmp_path: Path) -> None:
    faults = (
        Fault("missing", "/sys/class/powercap/intel-rapl:0/energy_uj", at_s=1.0),
        Fault("missing", "perf:instructions:3", at_s=1.0),
        Fault("gpu-lost", "gpu:1", at_s=1.0),
    )
    with node("xh2415", "easywave", *faults) as inside:
        config = settings(tmp_path, cpu_policy=fixed(1_500_000))
        with whole_run(inside, config) as (run, said):
            go_on(run, inside, 20.0)
            assert not [line for line in said if "begins again" in line], said
            assert "no energy of package-0" in run.status()


def test_a_limit_that_a_card_lost_in_a_reset_is_set_again_in_the_same_run(tmp_path: Path) -> None:
    with node("xh2415", "easywave", Fault("gpu-lost", "gpu:0", at_s=2.0, for_s=2.0)) as inside:
        config = settings(tmp_path, cpu_policy=fixed(1_500_000), gpu_policy=fixed_gpu(1095))
        with whole_run(inside, config) as (run, said):
            go_on(run, inside, 3.0)
            inside.twin.lock_gpu(0, 0, 0)  # as the driver does
            go_on(run, inside, 12.0)
            assert lock_mhz(inside, 0) == 1095 and [line for line in said if "GPU 0 was gone" in line]


def test_a_policy_that_came_back_at_the_kernels_own_limit_is_nobodys(tmp_path: Path) -> None:
    with node("taurus", "hpl") as inside:
        said: list[str] = []
        with Agent.open(inside.ports, settings(tmp_path, cpu_policy=fixed(1_500_000)), said.append) as agent:
            last = agent.layout.domains[-1].policies[-1]
            agent.run(until_ns=inside.twin.time_ns + S)
            inside.faults.add_line(f"missing {CPUFREQ}/policy{last} for=4 value=ENOENT")
            agent.run(until_ns=inside.twin.time_ns + 4 * S + S // 20)
            khz = int(inside.ports.files.read(f"{CPUFREQ}/policy{last}/cpuinfo_max_freq"))
            inside.ports.files.write(MAX_FREQ.format(last), str(khz - 100_000))  # neither ours nor what was captured
            lower = limit_khz(inside, last)
            assert 1_500_000 < lower < khz
            agent.run(until_ns=inside.twin.time_ns + 8 * S)
            assert limit_khz(inside, last) == 1_500_000
        (line,) = [line for line in said if "vanished" in line or "foreign" in line]
        assert line.startswith(f"cpu/policy{last}/max_khz: vanished: {CPUFREQ}/policy{last}/scaling_max_freq is gone")
        assert limit_khz(inside, last) == lower, "what was found lower stays so"


def test_a_line_about_several_policies_names_the_file_of_each(tmp_path: Path) -> None:
    with node("xh2415", "hpl", *(gone(f"{CPUFREQ}/policy{n}", 2.0, 30.0) for n in (6, 7, 9))) as inside:
        config = settings(tmp_path, cpu_policy=fixed(1_500_000))
        with whole_run(inside, config) as (run, said):
            go_on(run, inside, 9.0)
    lines = [line for line in said if "vanished" in line]
    for line in lines:
        knobs, _, detail = line.partition(": vanished: ")
        assert knobs.removeprefix("cpu/policy").removesuffix("/max_khz") in detail, line
    assert {number for line in lines for number in ("6", "7", "9") if number in line} == {"6", "7", "9"}
