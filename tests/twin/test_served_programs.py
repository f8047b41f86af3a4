"""Programs that know nothing of the twin read it and act on it: perf, cpupower, powercap-info, psutil and their kin."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.twin.served_node import ServedNode, twin_command, why_not_served

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)

from tests.waiting import PATIENCE_S, within
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

IPC_TOLERANCE = 0.03  # the model's counter noise over one CPU; perf adds the times of its own switches


def needs(program: str, package: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is missing: install {package}")


def module_of(name: str, package: str) -> None:
    if importlib.util.find_spec(name) is None:  # not imported: nvitop changes pynvml for the whole process
        pytest.skip(f"{name} is missing: pip install {package}")


@pytest.fixture(scope="module")
def curie() -> Iterator[ServedNode]:
    with ServedNode("curie", "--workload", "hpl") as node:
        yield node


@pytest.fixture(scope="module")
def xh2415() -> Iterator[ServedNode]:
    with ServedNode("xh2415", "--workload", "easywave") as node:
        yield node


def counts(text: str) -> dict[str, float]:
    """perf stat -x, prints value,unit,event,...; counts of several CPUs are added."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        cells = line.split(",")
        if len(cells) < 4:
            continue
        value, _, event = cells[1:4] if cells[0].startswith("CPU") else cells[0:3]
        if event:  # else a second figure derived from the event above
            found[event] = found.get(event, 0.0) + (float(value) if value[0].isdigit() else float("nan"))
    return found


def modelled_ipc(machine: str, workload: str) -> float:
    node = load_machine(machine)
    twin = Twin(node, load_workload(workload, node))
    twin.advance(1.0)
    table = twin.counters(["cycles", "instructions"]).sum(axis=0)
    return float(table[1] / table[0])


# ---- perf ----------------------------------------------------------------------------------------------------------


def test_perf_counts_every_cpu_at_the_clock_and_ipc_of_the_model(curie: ServedNode) -> None:
    needs("perf", "linux-perf")
    done = curie.run("perf", "stat", "-x,", "-a", "-A", "-e", "cycles,instructions,task-clock", "sleep", "0.3")
    assert done.returncode == 0, done.stderr
    assert len({line.split(",")[0] for line in done.stderr.splitlines() if line.startswith("CPU")}) == 16
    found = counts(done.stderr)
    clock_hz = found["cycles"] / (found["task-clock"] * 1e-3)
    assert clock_hz == pytest.approx(2.7e9, rel=0.02)  # the top step of a Xeon E5-2680 without turbo
    assert found["instructions"] / found["cycles"] == pytest.approx(modelled_ipc("curie", "hpl"), rel=IPC_TOLERANCE)


def test_perf_groups_are_counted_together(curie: ServedNode) -> None:
    needs("perf", "linux-perf")
    events = "{cycles,ref-cycles,instructions},{cache-misses,stalled-cycles-backend},power/energy-pkg/"
    done = curie.run("perf", "stat", "-x,", "-a", "-e", events, "sleep", "0.2")
    assert done.returncode == 0, done.stderr
    found = counts(done.stderr)
    assert found["cycles"] == pytest.approx(found["ref-cycles"], rel=1e-3)  # at 2.7 GHz, which is also the TSC's rate
    assert 0 < found["cache-misses"] < found["instructions"]
    assert 0 < found["stalled-cycles-backend"] < found["cycles"]
    run_ns = next(line.split(",")[3] for line in done.stderr.splitlines() if "energy-pkg" in line)
    assert 40 < found["power/energy-pkg/"] / (int(run_ns) * 1e-9) < 135  # watts of one package; its TDP is 130 W


def test_perf_says_what_the_machine_does_not_count(xh2415: ServedNode) -> None:
    needs("perf", "linux-perf")
    done = xh2415.run("perf", "stat", "-x,", "-a", "-e", "ref-cycles,bus-cycles,msr/mperf/", "sleep", "0.05")
    assert "<not supported>,,ref-cycles" in done.stderr  # Zen 2 has no such event
    assert "<not supported>,,bus-cycles" in done.stderr
    assert counts(done.stderr)["msr/mperf/"] > 0


def test_perf_counts_a_task_in_proportion_to_its_own_time(curie: ServedNode) -> None:
    needs("perf", "linux-perf")
    command = ["bash", "-c", "for i in {1..50000}; do :; done"]
    done = curie.run("perf", "stat", "-x,", "-e", "{task-clock,cycles,instructions}", "--", *command)
    assert done.returncode == 0, done.stderr
    found = counts(done.stderr)
    assert found["cycles"] == pytest.approx(found["task-clock"] * 1e-3 * 2.7e9, rel=0.05)
    assert found["instructions"] / found["cycles"] == pytest.approx(modelled_ipc("curie", "hpl"), rel=IPC_TOLERANCE)


def test_perf_stat_without_events_is_sane_on_96_cpus(xh2415: ServedNode) -> None:
    needs("perf", "linux-perf")
    begin_s = time.monotonic()
    done = xh2415.run("perf", "stat", "-x,", "-a", "sleep", "0.2")
    longest_ms = (time.monotonic() - begin_s) * 1e3
    assert done.returncode == 0, done.stderr
    found = counts(done.stderr)
    assert 96 * 200 <= found["cpu-clock"] < 96 * longest_ms
    assert found["context-switches"] > 0
    assert 0 < found["cycles"] < found["cpu-clock"] * 1e-3 * 2.9e9  # its highest step is 2.8 GHz


def test_perf_record_gets_an_error_since_there_is_no_sampling(curie: ServedNode) -> None:
    needs("perf", "linux-perf")
    done = curie.run("perf", "record", "-o", "/dev/null", "-a", "-e", "cycles", "sleep", "0.01")
    assert done.returncode != 0
    assert "doesn't support sampling" in done.stderr


CALLS = """
import ctypes, errno, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(kind=0, config=0, cpu=0, task=-1, leader=-1, flags=8, size=64, period=0, read_format=0):
    attr = struct.pack("=IIQQQQ", kind, size, config, period, 0, read_format).ljust(256, bytes(1))
    fd = libc.syscall(298 if os.uname().machine == "x86_64" else 241, attr, task, cpu, leader, flags)
    return fd if fd >= 0 else errno.errorcode[ctypes.get_errno()]
real = call(kind=1)
print(os.readlink(f"/proc/self/fd/{real}"))
print(call(leader=real), call(leader=99), call(cpu=96), call(cpu=-1), call(config=6), call(kind=77))
print(call(period=1000), call(flags=1 << 20), call(size=8), call(read_format=1 << 9), call(task=2**30))
"""


def test_wrong_calls_get_the_kernels_errno_and_software_events_stay_real(xh2415: ServedNode) -> None:
    first, second, third = xh2415.python(CALLS).splitlines()
    assert first == "anon_inode:[perf_event]"
    assert second.split() == ["EINVAL", "EBADF", "EINVAL", "EINVAL", "ENOENT", "ENOENT"]
    assert third.split() == ["ENOTSUP", "EINVAL", "E2BIG", "EINVAL", "ESRCH"]


SWEEPS = """
import ctypes, os, struct, time
libc = ctypes.CDLL(None)
def group_of(cpu):
    leader = -1
    for config in (0, 1, 3):
        attr = struct.pack("=IIQ16xQ", 0, 64, config, 1 | 2 | 8).ljust(64, bytes(1))
        fd = libc.syscall(298 if os.uname().machine == "x86_64" else 241, attr, -1, cpu, leader, 8)
        assert fd >= 0, (cpu, config)
        leader = fd if leader < 0 else leader
    return leader
leaders = [group_of(cpu) for cpu in range(96)]
(asked, ask), (answered, answer) = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(ask)
    while os.read(asked, 1):
        os.write(answer, b"x")
    os._exit(0)
for _ in range(160):
    begin = time.perf_counter()
    for _ in leaders:
        os.write(ask, b"x")
        os.read(answered, 1)
    middle = time.perf_counter()
    for leader in leaders:
        os.read(leader, 256)
    print(middle - begin, time.perf_counter() - middle)
    time.sleep(0.005)
"""


def test_a_sweep_of_96_cpus_costs_less_than_four_times_96_exchanges_with_another_process(xh2415: ServedNode) -> None:
    """Each read is such an exchange, with the process that serves the counters: 1.8 ms a sweep, 1.7 times as much.

    The quickest of each counts: whether both ends share a CPU at the moment changes either by a factor of four.
    """
    rows = [[float(word) for word in line.split()] for line in xh2415.python(SWEEPS).splitlines()]
    exchanges_s, sweeps_s = (min(row[column] for row in rows) for column in range(2))
    assert sweeps_s < 4 * exchanges_s


# ---- files ---------------------------------------------------------------------------------------------------------


def test_cpupower_reads_the_clock_and_sets_it(curie: ServedNode) -> None:
    needs("cpupower", "linux-cpupower")
    try:
        shown = curie.output("cpupower", "-c", "0", "frequency-info")
        assert "hardware limits: 1.20 GHz - 2.70 GHz" in shown
        assert "2700 MHz max turbo 1 active cores" in shown  # from a register
        curie.output("cpupower", "frequency-set", "-u", "1500MHz")
        clock = "/sys/devices/system/cpu/cpu7/cpufreq/scaling_cur_freq"
        assert within(PATIENCE_S, lambda: curie.read(clock) == "1500000")
        cycles = "import os,sys; print(os.path.realpath(sys.argv[1]))"
        assert "/sys/devices/system/cpu/" in curie.python(cycles, "/sys/devices/system/cpu/cpu7/cpufreq")
        if shutil.which("perf"):
            done = curie.run("perf", "stat", "-x,", "-a", "-e", "cycles,cpu-clock", "sleep", "0.1")
            found = counts(done.stderr)
            assert found["cycles"] / (found["cpu-clock"] * 1e-3) == pytest.approx(1.5e9, rel=0.02)
    finally:
        curie.run("cpupower", "frequency-set", "-u", "2700MHz")


def test_cpupower_sets_a_speed_with_the_userspace_governor(curie: ServedNode) -> None:
    needs("cpupower", "linux-cpupower")
    try:
        curie.output("cpupower", "frequency-set", "-g", "userspace")
        curie.output("cpupower", "frequency-set", "-f", "1200MHz")
        clock = "1.20 GHz (asserted by call to hardware)"
        assert within(PATIENCE_S, lambda: clock in curie.output("cpupower", "frequency-info"))
    finally:
        curie.run("cpupower", "frequency-set", "-g", "performance")


def test_powercap_info_shows_zones_and_moving_energy(curie: ServedNode) -> None:
    needs("powercap-info", "powercap-utils")
    assert "name: package-0" in curie.output("powercap-info", "-p", "intel-rapl")
    moved_j: list[float] = []
    first_uj = int(curie.read("/sys/class/powercap/intel-rapl:0/energy_uj"))

    def has_moved() -> bool:
        moved_j.append((int(curie.read("/sys/class/powercap/intel-rapl:0/energy_uj")) - first_uj) * 1e-6)
        return moved_j[-1] > 2.0

    assert within(PATIENCE_S, has_moved)
    assert moved_j == sorted(moved_j)


def test_pyrapl_measures_joules(curie: ServedNode) -> None:
    module_of("pyRAPL", "pyRAPL")
    measure = (
        "import pyRAPL, time; pyRAPL.setup(); m = pyRAPL.Measurement('x');"
        "m.begin(); time.sleep(0.2); m.end(); print(m.result.duration, *m.result.pkg)"
    )

    def is_plausible() -> bool:
        """On a busy machine the emulated node may be a while behind, at the begin or at the end."""
        duration_us, *packages_uj = (float(word) for word in curie.python(measure).split()[-3:])
        return all(40 < uj / duration_us < 135 for uj in packages_uj)

    assert within(PATIENCE_S, is_plausible)


def test_psutil_sees_cpus_clocks_and_temperatures(xh2415: ServedNode) -> None:
    look = (
        "import psutil, json; f = psutil.cpu_freq();"
        "t = [x for chip in psutil.sensors_temperatures().values() for x in chip];"
        "print(json.dumps([psutil.cpu_count(), f.min, f.max, [x.current for x in t]]))"
    )
    cpus, low_mhz, high_mhz, temperatures = json.loads(xh2415.python(look))
    assert (cpus, low_mhz, high_mhz) == (96, 1500, 2800)
    assert temperatures
    assert all(20 < celsius < 100 for celsius in temperatures)


def test_lscpu_shows_the_emulated_topology(xh2415: ServedNode) -> None:
    text = xh2415.output("lscpu", "-p=CPU,CORE,SOCKET")
    rows = [tuple(map(int, line.split(","))) for line in text.splitlines() if not line.startswith("#")]
    assert len(rows) == 96
    assert len({core for _, core, _ in rows}) == 48
    assert {socket for _, _, socket in rows} == {0, 1}


def test_lscpu_lists_caches_and_numa_nodes(xh2415: ServedNode) -> None:
    fields = dict(line.split(":", 1) for line in xh2415.output("lscpu").splitlines() if ":" in line)
    assert {name: value.strip() for name, value in fields.items() if "cache" in name or "NUMA" in name} == {
        "L1d cache": "1.5 MiB (48 instances)",
        "L1i cache": "1.5 MiB (48 instances)",
        "L2 cache": "24 MiB (48 instances)",
        "L3 cache": "256 MiB (16 instances)",
        "NUMA node(s)": "2",
        "NUMA node0 CPU(s)": "0-23,48-71",
        "NUMA node1 CPU(s)": "24-47,72-95",
    }


def test_lscpu_names_the_emulated_processor(xh2415: ServedNode) -> None:
    fields = dict(line.split(":", 1) for line in xh2415.output("lscpu").splitlines() if ":" in line)
    shown = {name: fields[name].strip() for name in ("Vendor ID", "Model name", "CPU family", "Model", "BogoMIPS")}
    assert shown == {
        "Vendor ID": "AuthenticAMD",
        "Model name": "AMD EPYC 7402 24-Core Processor",
        "CPU family": "23",
        "Model": "49",
        "BogoMIPS": "5600.00",
    }


def test_psutil_reads_each_clock_and_how_busy_each_emulated_cpu_is(curie: ServedNode) -> None:
    needs("cpupower", "linux-cpupower")
    look = (
        "import psutil, json\n"
        "while not min(busy := psutil.cpu_percent(0.3, percpu=True)): pass\n"  # 0 where no emulated time has passed
        "print(json.dumps([busy, [f.current for f in psutil.cpu_freq(percpu=True)], psutil.boot_time()]))"
    )
    try:
        curie.output("cpupower", "-c", "0-7", "frequency-set", "-u", "1500MHz")
        clock = "/sys/devices/system/cpu/cpu7/cpufreq/scaling_cur_freq"
        assert within(PATIENCE_S, lambda: curie.read(clock) == "1500000")
        busy_pct, clocks_mhz, boot_s = json.loads(curie.python(look))
    finally:
        curie.output("cpupower", "-c", "0-7", "frequency-set", "-u", "2700MHz")
    assert clocks_mhz == [1500.0, 2700.0]  # psutil lists policies, here one for each socket
    assert len(busy_pct) == 16 and min(busy_pct) > 80  # hpl keeps every emulated core at work, whatever the host does
    assert boot_s == pytest.approx(psutil.boot_time(), abs=1.0)


def test_a_file_without_write_permission_cannot_be_opened_for_it_by_root(curie: ServedNode) -> None:
    path = "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"
    assert "Permission denied" in curie.run("sh", "-c", f"echo 1 > {path}").stderr


def test_an_administrator_opens_energy_counters_to_users(xh2415: ServedNode) -> None:
    read = "setpriv --reuid=65534 --regid=65534 --clear-groups cat /sys/class/powercap/intel-rapl:0/energy_uj"
    assert "Permission denied" in xh2415.run("sh", "-c", read).stderr
    assert int(xh2415.output("sh", "-c", f"chmod -R a+r /sys/class/powercap/intel-rapl/; {read}")) > 0


def test_an_administrator_gives_a_file_to_a_group_and_may_touch_it(curie: ServedNode) -> None:
    """As udev rules do; tried on the kernel's own sysfs."""
    path = "/sys/class/powercap/intel-rapl:0/energy_uj"
    read = f"setpriv --reuid=65534 --regid=65534 --clear-groups cat {path}"
    assert "Permission denied" in curie.run("sh", "-c", read).stderr
    give = f"chgrp 65534 {path} && chmod g+r {path} && touch {path}"
    assert int(curie.output("sh", "-c", f"{give} && {read}")) >= 0
    assert curie.output("stat", "-c", "%u %g", path).split() == ["0", "65534"]


def test_files_are_neither_made_nor_removed_as_in_sysfs(curie: ServedNode) -> None:
    """The errno values are those of the kernel's own sysfs, tried as root."""
    code = """
import errno, os
folder = "/sys/class/powercap/intel-rapl:0"
for attempt in (
    lambda: open(f"{folder}/constraint_7_power_limit_uw", "w"),
    lambda: os.mkdir(f"{folder}/new"),
    lambda: os.unlink(f"{folder}/name"),
    lambda: os.rename(f"{folder}/name", f"{folder}/new"),
    lambda: os.symlink("name", f"{folder}/new"),
):
    try:
        attempt()
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    assert curie.run(sys.executable, "-c", code).stdout.split() == ["EACCES", "EPERM", "EPERM", "EPERM", "EPERM"]


def test_writes_to_the_rest_of_sys_stay_in_the_namespace(curie: ServedNode) -> None:
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    try:
        with open(path) as file:
            before = file.read()
    except FileNotFoundError:
        pytest.skip(f"this kernel has no {path}")
    curie.run("sh", "-c", f"echo nonsense > {path}")
    with open(path) as file:
        assert file.read() == before


# ---- GPUs ----------------------------------------------------------------------------------------------------------


def test_a_locked_gpu_clock_lowers_the_power_that_nvml_reads(xh2415: ServedNode) -> None:
    module_of("pynvml", "nvidia-ml-py")
    lock = (
        "import pynvml as n, time; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); end = time.monotonic() + 60\n"
        "before = n.nvmlDeviceGetPowerUsage(h); n.nvmlDeviceSetGpuLockedClocks(h, 0, 510)\n"
        "while n.nvmlDeviceGetPowerUsage(h) > 0.65 * before and time.monotonic() < end: time.sleep(0.05)\n"
        "print(before, n.nvmlDeviceGetPowerUsage(h), n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM))\n"
        "n.nvmlDeviceResetGpuLockedClocks(h)"
    )
    before_mw, locked_mw, clock_mhz = (int(word) for word in xh2415.python(lock).split())
    assert clock_mhz == 510
    assert locked_mw < 0.7 * before_mw < 0.7 * 400_000


@pytest.mark.parametrize(("module", "options"), [("gpustat", []), ("nvitop", ["-1"])])
def test_gpu_viewers_list_the_emulated_cards(xh2415: ServedNode, module: str, options: list[str]) -> None:
    module_of(module, module)
    text = xh2415.output("env", "TERM=xterm", "COLUMNS=120", sys.executable, "-m", module, *options)
    assert text.count("A100-SXM4-80GB") == 4


# ---- faults, while it runs -----------------------------------------------------------------------------------------


def test_a_fault_is_added_listed_and_removed_while_programs_run(curie: ServedNode) -> None:
    path = "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:0/energy_uj"
    number = curie.twin("fault", "add", "stuck", path).strip()
    assert curie.read(path) == curie.read(path)
    listed = json.loads(curie.twin("fault", "list", "--json"))
    assert [(row["number"], row["stands"]) for row in listed] == [(int(number), True)]
    curie.twin("fault", "remove", number)
    first = curie.read(path)
    assert within(PATIENCE_S, lambda: curie.read(path) != first)


def test_a_counter_that_is_missing_cannot_be_opened_any_more(curie: ServedNode) -> None:
    needs("perf", "linux-perf")
    number = curie.twin("fault", "add", "missing", "perf:instructions").strip()
    try:
        perf = ("perf", "stat", "-x,", "-a", "-e", "cycles,instructions", "sleep", "0.02")
        said: list[str] = []

        def is_missing() -> bool:
            said.append(curie.run(*perf).stderr)
            return "<not supported>,,instructions" in said[-1]

        assert within(PATIENCE_S, is_missing)
        assert counts(said[-1])["cycles"] > 0
    finally:
        curie.twin("fault", "remove", number)


ASK_GPU = """
import pynvml as n, time
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
time.sleep(0.05)
try:
    print(n.nvmlDeviceGetTemperature(gpu, 0), end=" ")
except n.NVMLError_NotSupported:
    print("missing", end=" ")
first = n.nvmlDeviceGetTotalEnergyConsumption(gpu)
time.sleep(0.3)
print("stuck" if n.nvmlDeviceGetTotalEnergyConsumption(gpu) == first else "moving", n.nvmlDeviceGetClockInfo(gpu, 1))
"""


def test_single_readings_of_a_gpu_fail_while_programs_read_it(xh2415: ServedNode) -> None:
    module_of("pynvml", "nvidia-ml-py")
    lines = ("missing gpu:0:temperature", "stuck gpu:0:energy", "absurd gpu:0:sm-clock")
    numbers = [xh2415.twin("fault", "add", *line.split()).strip() for line in lines]
    try:
        assert within(PATIENCE_S, lambda: xh2415.python(ASK_GPU).split() == ["missing", "stuck", "4294967"])
    finally:
        for number in numbers:
            xh2415.twin("fault", "remove", number)

    def is_well() -> bool:
        temperature, energy, clock = xh2415.python(ASK_GPU).split()
        return temperature != "missing" and 20 < int(temperature) < 100 and energy == "moving" and int(clock) <= 1410

    assert within(PATIENCE_S, is_well)


def test_a_slow_file_does_not_delay_the_others(curie: ServedNode) -> None:
    slow, quick = (f"/sys/class/powercap/intel-rapl:{package}/energy_uj" for package in (0, 1))
    number = curie.twin("fault", "add", "slow", slow, "value=0.5").strip()
    timed = f"begin=$(date +%s%N); cat {quick} > /dev/null; echo $(($(date +%s%N) - begin))"
    race = f"cat {slow} > /dev/null & {timed}; wait"
    try:
        assert int(curie.output("sh", "-c", race)) * 1e-9 < 0.3
    finally:
        curie.twin("fault", "remove", number)


def test_a_wrong_fault_gets_one_line_that_says_why(curie: ServedNode) -> None:
    done = curie.run(*twin_command("fault", "add", "stukc", "/sys/class/powercap"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "stuck" in done.stderr
