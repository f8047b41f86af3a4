"""The real perf on a served twin: what a plain ``perf stat`` prints, a task on an idle node, bandwidth, samples."""

from __future__ import annotations

import re
import shutil
import sysconfig
from collections.abc import Iterator

import pytest

from tests.twin.served_node import ROOT, ServedNode, why_not_served
from tests.waiting import PATIENCE_S, within

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)
if shutil.which("perf") is None:
    pytest.skip("perf is missing: install linux-perf", allow_module_level=True)

from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

FOREIGN = ROOT / "build" / "foreign" / "root"
BURN = ("bash", "-c", "for i in {1..40000}; do :; done")


@pytest.fixture(scope="module")
def idle() -> Iterator[ServedNode]:
    """A node without a workload, whose clocks are at their lowest."""
    with ServedNode("curie") as node:
        yield node


@pytest.fixture(scope="module")
def streaming() -> Iterator[ServedNode]:
    with ServedNode("skylake-6146", "--workload", "stream") as node:
        yield node


def stat(node: ServedNode, *arguments: str) -> dict[str, float]:
    """Counts by event; those that are not counted are left out."""
    done = node.run("perf", "stat", "-x,", *arguments)
    assert done.returncode == 0, done.stderr
    rows = [line.split(",") for line in done.stderr.splitlines() if line.count(",") > 3]
    return {row[2]: float(row[0]) for row in rows if re.fullmatch(r"[\d.]+", row[0])}


def test_a_task_on_an_idle_node_counts_cycles_at_the_clock(idle: ServedNode) -> None:
    found = stat(idle, "-e", "task-clock,cycles,ref-cycles", "--", *BURN)
    khz = int(idle.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"))
    assert found["cycles"] / found["task-clock"] == pytest.approx(khz, rel=0.01)  # both are per millisecond
    assert found["ref-cycles"] / found["task-clock"] == pytest.approx(2_700_000, rel=0.01)


def test_a_plain_perf_stat_counts_all_of_its_events(idle: ServedNode) -> None:
    done = idle.run("perf", "stat", *BURN)
    assert done.returncode == 0, done.stderr
    assert "not supported" not in done.stderr and "not counted" not in done.stderr
    shown = {line.split()[1]: line for line in done.stderr.splitlines() if len(line.split()) > 2}
    events = (
        "context-switches",
        "cpu-migrations",
        "page-faults",
        "cycles",
        "instructions",
        "branches",
        "branch-misses",
    )
    assert {*events, "stalled-cycles-frontend", "stalled-cycles-backend"} <= set(shown)
    assert "1.200 GHz" in shown["cycles"]
    assert "1.00% of all branches" in shown["branch-misses"]


def test_last_level_loads_and_misses_are_counted(streaming: ServedNode) -> None:
    found = stat(streaming, "-a", "-e", "LLC-loads,LLC-load-misses,instructions", "sleep", "0.1")
    assert 0 < found["LLC-load-misses"] < found["LLC-loads"] < found["instructions"]


def test_memory_controllers_count_the_models_bandwidth(streaming: ServedNode) -> None:
    machine = load_machine("skylake-6146")
    twin = Twin(machine, load_workload("stream", machine))
    twin.advance(1.0)
    expected = sum(twin.traffic_bytes(package) for package in range(2)) / twin.age_ns  # GB/s
    measured: list[float] = []

    def was_right() -> bool:
        """On a busy machine the emulated node may be a while behind, at the begin or at the end."""
        events = ("uncore_imc/cas_count_read/", "uncore_imc/cas_count_write/", "duration_time")
        found = stat(streaming, "-a", "-e", ",".join(events), "sleep", "0.2")
        mib = found[events[0]] + found[events[1]]
        measured.append(mib * 2**20 / found["duration_time"])
        return any(value == pytest.approx(expected, rel=0.03) for value in measured)

    assert within(PATIENCE_S, was_right), (measured, expected)


def test_papi_counts_a_task_if_its_processor_is_named(streaming: ServedNode) -> None:
    """libpfm looks for the processor by the CPUID instruction, which is the host's."""
    papi = FOREIGN / "usr/bin/papi_command_line"
    if not papi.exists():
        pytest.skip("PAPI is missing: unpack it with scripts/foreign.sh")
    libraries = f"LD_LIBRARY_PATH={FOREIGN}/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
    events = ("PAPI_TOT_CYC", "PAPI_REF_CYC", "PAPI_TOT_INS", "PAPI_BR_INS")
    text = streaming.output("env", libraries, "LIBPFM_FORCE_PMU=skx", str(papi), *events)
    found = {name: int(count) for name, count in re.findall(r"(PAPI_\w+) : \s*(\d+)", text)}
    assert set(found) == set(events), text
    assert found["PAPI_TOT_CYC"] == pytest.approx(found["PAPI_REF_CYC"], rel=0.01)  # 3.2 GHz, as the TSC
    assert found["PAPI_BR_INS"] == pytest.approx(0.1 * found["PAPI_TOT_INS"], rel=0.02)


def test_a_commands_own_time_is_load_if_requested() -> None:
    look = """
import statistics, subprocess, sys, time
def busy_ticks():
    cpus = [line.split() for line in open("/proc/stat") if line.startswith("cpu") and line[3] != " "]
    return [int(cells[1]) + int(cells[3]) for cells in cpus]
burn = subprocess.Popen([sys.executable, "-c", "while True: pass"])
before, more, end_s = busy_ticks(), 0, time.monotonic() + 60
while more < 10 and time.monotonic() < end_s:
    time.sleep(0.05)
    ticks = [now - was for now, was in zip(busy_ticks(), before)]
    more = max(ticks) - statistics.median(ticks)
burn.kill()
print(more)
"""
    with ServedNode("curie", "--command-load") as node:
        assert float(node.python(look)) >= 10  # a tenth of a second of one CPU


def test_software_sampling_passes_through(streaming: ServedNode) -> None:
    """perf opens an event and a buffer for each emulated CPU; the host has fewer."""
    record = "perf record -q -F 1999 -e cpu-clock -o /run/perf.data -- " + " ".join((*BURN[:2], f"'{BURN[2]}'"))
    streaming.output("sh", "-c", record)
    lines = streaming.output("perf", "script", "-i", "/run/perf.data", "-F", "comm,event").splitlines()
    assert len(lines) > 10
    assert {line.split()[0] for line in lines} <= {"bash", "perf", "perf-exec"}
