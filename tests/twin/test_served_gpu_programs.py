"""GPU programs that know nothing of the twin find its NVML and its nvidia-smi, and read the model's numbers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.twin.served_node import ROOT, ServedNode, environment, twin_command, why_not_served

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)
if importlib.util.find_spec("pynvml") is None:
    pytest.skip("pynvml is missing: pip install nvidia-ml-py", allow_module_level=True)

from tests.waiting import PATIENCE_S, within
from twin.nvml import loader_cache
from twin.serve import namespace

FOREIGN = ROOT / "build" / "foreign-python"
"""An environment with programs of PyPI that are not in ours (scripts/foreign_python.sh)."""

foreign = pytest.mark.skipif(
    not (FOREIGN / "complete").exists(),
    reason="programs of PyPI are missing: install them with scripts/foreign_python.sh",
)

COUNT = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"


@pytest.fixture(scope="module")
def xh2415() -> Iterator[ServedNode]:
    with ServedNode("xh2415", "--workload", "easywave") as node:
        yield node


# ---- the library ---------------------------------------------------------------------------------------------------


def test_a_program_without_environment_finds_the_library(xh2415: ServedNode) -> None:
    assert xh2415.output("env", "-i", sys.executable, "-I", "-c", COUNT).strip() == "4"


def test_the_loaders_path_is_not_in_the_environment_and_the_hosts_list_is_as_before(xh2415: ServedNode) -> None:
    assert "LD_LIBRARY_PATH" not in xh2415.output("env")
    assert b"twin/nvml" not in Path(loader_cache.PLACE).read_bytes()
    listed = xh2415.output("env", "PATH=/usr/sbin:/sbin", "ldconfig", "-p")
    assert listed.count("libnvidia-ml.so.1 ") == 1 and "twin/nvml" in listed


USER = """
import ctypes, json, os, sys
import pynvml as n
ctypes.CDLL("libnvidia-ml.so.1")  # this checkout may be in a folder of root's
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
n.nvmlInit()
card = n.nvmlDeviceGetHandleByIndex(1)
answers = []
for change in (
    lambda: n.nvmlDeviceSetGpuLockedClocks(card, 510, 510),
    lambda: n.nvmlDeviceResetGpuLockedClocks(card),
    lambda: n.nvmlDeviceSetPowerManagementLimit(card, 200000),
    lambda: n.nvmlDeviceSetPersistenceMode(card, 0),
):
    try:
        change()
        answers.append("done")
    except n.NVMLError as error:
        answers.append(error.value)
listed = {f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")}
(state,) = [fd for fd in listed if os.path.exists(fd) and "nodectl-twin-gpus" in os.readlink(fd)]
try:
    os.open(state, os.O_RDWR)
    is_writable = True
except PermissionError:
    is_writable = False
print(json.dumps([n.nvmlDeviceGetCount(), n.nvmlDeviceGetPowerUsage(card), answers, is_writable]))
"""
"""A program that has given up root before its first call; at last it tries to open the cards' memory for writing."""


def test_a_user_other_than_root_reads_the_cards_and_may_not_set_them(xh2415: ServedNode) -> None:
    count, power_mw, answers, is_writable = json.loads(xh2415.python(USER))
    assert count == 4 and power_mw > 30_000
    assert answers == [4] * 4  # NVML_ERROR_NO_PERMISSION
    assert not is_writable


AFFINITY = """
import json, os, pynvml as n
n.nvmlInit()
shown = []
for index in range(n.nvmlDeviceGetCount()):
    card = n.nvmlDeviceGetHandleByIndex(index)
    mask = sum(int(word) << 64 * at for at, word in enumerate(n.nvmlDeviceGetCpuAffinity(card, 2)))
    assert list(n.nvmlDeviceGetCpuAffinityWithinScope(card, 2, 1)) == list(n.nvmlDeviceGetCpuAffinity(card, 2))
    n.nvmlDeviceSetCpuAffinity(card)
    shown.append([[cpu for cpu in range(128) if mask >> cpu & 1], sorted(os.sched_getaffinity(0)),
        list(n.nvmlDeviceGetMemoryAffinity(card, 1, 0))])
    n.nvmlDeviceClearCpuAffinity(card)
    assert len(os.sched_getaffinity(0)) == 96
try:
    n.nvmlDeviceGetNumaNodeId(card)
except n.NVMLError_NotSupported:  # cards that are NUMA nodes themselves have one
    print(json.dumps(shown))
"""


def test_cards_are_spread_over_the_packages_and_a_thread_binds_itself_to_the_cpus_near_one(xh2415: ServedNode) -> None:
    nodes = []
    for node in (0, 1):
        first, *others = xh2415.read(f"/sys/devices/system/node/node{node}/cpulist").split(",")
        pairs = [each.split("-") for each in (first, *others)]
        nodes.append([cpu for pair in pairs for cpu in range(int(pair[0]), int(pair[-1]) + 1)])
    expected = [[nodes[index // 2], nodes[index // 2], [1 << index // 2]] for index in range(4)]
    assert json.loads(xh2415.python(AFFINITY)) == expected


def test_nvidia_smi_sets_applications_clocks_which_the_card_runs_at_and_names(xh2415: ServedNode) -> None:
    def clock_and_reason() -> list[str]:
        query = "--query-gpu=clocks.sm,clocks_event_reasons.applications_clocks_setting"
        return xh2415.output("nvidia-smi", "-i", "3", query, "--format=csv,noheader,nounits").strip().split(", ")

    try:
        xh2415.output("nvidia-smi", "-i", "3", "-ac", "1593,1005")
        assert within(PATIENCE_S, lambda: clock_and_reason() == ["1005", "Active"])
    finally:
        xh2415.output("nvidia-smi", "-i", "3", "-rac")
    assert within(PATIENCE_S, lambda: clock_and_reason() == ["1365", "Not Active"])


# ---- nvidia-smi ----------------------------------------------------------------------------------------------------


def test_nvidia_smi_is_on_the_path_of_the_run_alone(xh2415: ServedNode) -> None:
    place = xh2415.output("sh", "-c", "command -v nvidia-smi").strip()
    assert place == f"{namespace.COMMANDS}/nvidia-smi" and not Path(place).exists()
    assert xh2415.output("nvidia-smi", "-L").count("A100-SXM4-80GB") == 4


def test_nvidia_smi_locks_a_clock_and_shows_the_lower_power(xh2415: ServedNode) -> None:
    def watts_and_clock() -> tuple[float, int]:
        query = "--query-gpu=power.draw,clocks.sm"
        cells = xh2415.output("nvidia-smi", "-i", "1", query, "--format=csv,noheader,nounits").split(", ")
        return float(cells[0]), int(cells[1])

    assert within(PATIENCE_S, lambda: watts_and_clock()[0] > 170)  # easywave at its free clock shows 189 and 226 W
    try:
        assert "gpuClkMin 510, gpuClkMax 510" in xh2415.output("nvidia-smi", "-i", "1", "-lgc", "510,510")
        assert within(PATIENCE_S, lambda: watts_and_clock()[1] == 510 and watts_and_clock()[0] < 130)
    finally:
        xh2415.output("nvidia-smi", "-i", "1", "-rgc")


def test_the_process_that_computes_is_listed_and_lives_in_the_run(xh2415: ServedNode) -> None:
    query = "--query-compute-apps=gpu_uuid,pid,used_memory"
    rows = xh2415.output("nvidia-smi", query, "--format=csv,noheader").splitlines()
    cells = [row.split(", ") for row in rows]
    assert len({uuid for uuid, _, _ in cells}) == 4 and {memory for _, _, memory in cells} == {"42000 MiB"}
    (pid,) = {pid for _, pid, _ in cells}
    assert xh2415.read(f"/proc/{pid}/comm") == "nodectl-twin"
    assert xh2415.output("nvidia-smi").count("42000MiB ") == 8  # each card, and the process on it


def test_a_real_nvidia_smi_of_the_host_is_the_twins_in_a_run(tmp_path: Path) -> None:
    """The stand-in lies on the PATH of the test, as the driver's program does on a node with GPUs."""
    real = tmp_path / "nvidia-smi"
    real.write_text("#!/bin/sh\necho the real one\n")
    real.chmod(0o755)
    done = subprocess.run(
        twin_command("run", "--machine", "v100", "--", str(real), "-L"),
        env={**environment(), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=ROOT,
    )
    assert "V100" in done.stdout, done.stderr
    assert subprocess.run([real], capture_output=True, text=True, check=True).stdout == "the real one\n"


# ---- programs of PyPI ----------------------------------------------------------------------------------------------

CARDS = """
import json, pynvml as n
n.nvmlInit()
cards = [n.nvmlDeviceGetHandleByIndex(index) for index in range(n.nvmlDeviceGetCount())]
shown = [[n.nvmlDeviceGetUUID(card), n.nvmlDeviceGetSerial(card), n.nvmlDeviceGetMemoryInfo(card).used / 2**20,
    n.nvmlDeviceGetMemoryInfo(card).total / 2**20, n.nvmlDeviceGetUtilizationRates(card).gpu] for card in cards]
print(json.dumps([n.nvmlSystemGetDriverVersion(), shown]))
"""


type_card = list[object]
"""UUID, serial number, MiB used and in all, and utilisation in per cent."""


def shown_by_nvml(node: ServedNode) -> tuple[str, list[type_card]]:
    """The driver's version, and its cards."""
    driver, cards = json.loads(node.python(CARDS))
    return driver, cards


def assert_shows_the_cards(node: ServedNode, cards: Callable[[], list[type_card]]) -> None:
    """Each card is shown as NVML shows it, at work: a program and NVML cannot be read at one instant."""
    seen: list[list[type_card]] = []

    def agree() -> bool:
        seen[:] = [cards(), shown_by_nvml(node)[1]]
        return seen[0] == seen[1] and all(card[-1] == 100 for card in seen[0])

    assert within(PATIENCE_S, agree), seen


def by_foreign_python(node: ServedNode, code: str) -> Any:
    """What a program prints as JSON in its last line."""
    home = "HOME=/run/nodectl-twin"  # nothing is written into the user's
    return json.loads(node.output("env", home, f"{FOREIGN}/bin/python", "-W", "ignore", "-c", code).splitlines()[-1])


GPUTIL = """
import GPUtil, json
print(json.dumps([[g.uuid, g.serial, g.memoryUsed, g.memoryTotal, 100 * g.load, g.driver, g.name, g.temperature]
    for g in GPUtil.getGPUs()]))
"""


@foreign
def test_gputil_reads_the_cards(xh2415: ServedNode) -> None:
    driver, _ = shown_by_nvml(xh2415)
    read: list[Any] = []

    def cards() -> list[type_card]:
        read[:] = by_foreign_python(xh2415, GPUTIL)
        return [card[:5] for card in read]

    assert_shows_the_cards(xh2415, cards)
    assert {tuple(card[5:7]) for card in read} == {(driver, "NVIDIA A100-SXM4-80GB")}
    assert all(20 < card[7] < 90 for card in read)


@foreign
def test_nvsmi_reads_the_cards(xh2415: ServedNode) -> None:
    driver, _ = shown_by_nvml(xh2415)
    read: list[Any] = []

    def cards() -> list[type_card]:
        lines = xh2415.output(f"{FOREIGN}/bin/nvsmi", "ls", "--json").splitlines()
        read[:] = [json.loads(line) for line in lines]
        return [[card[name] for name in ("uuid", "serial", "mem_used", "mem_total", "gpu_util")] for card in read]

    assert_shows_the_cards(xh2415, cards)
    assert {(card["driver"], card["display_mode"]) for card in read} == {(driver, "Disabled")}


SMI_ROW = re.compile(r"(\d+)W / +(\d+)W \| +(\d+)MiB / +(\d+)MiB \| +(\d+)%")


@foreign
def test_py3smi_reads_the_cards(xh2415: ServedNode) -> None:
    """It has bindings of its own (py3nvml) and looks up a process of a card in ``ps``."""

    def shown() -> list[list[int]]:
        return [[int(n) for n in row] for row in SMI_ROW.findall(xh2415.output(f"{FOREIGN}/bin/py3smi"))]

    def cards() -> list[type_card]:
        known = [card[:2] for card in shown_by_nvml(xh2415)[1]]
        return [[*ids, *row[2:]] for ids, row in zip(known, shown(), strict=True)]

    assert_shows_the_cards(xh2415, cards)
    last: list[list[int]] = []

    def is_at_work() -> bool:
        last[:] = shown()
        return len(last) == 4 and all(100 < watts < limit == 400 for watts, limit, *_ in last)

    assert within(PATIENCE_S, is_at_work), last


@pytest.mark.parametrize(("module", "options"), [("gpustat", ["--json"]), ("nvitop", ["-1"])])
def test_gpu_viewers_show_the_memory_and_load_of_the_cards(xh2415: ServedNode, module: str, options: list[str]) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is missing: pip install {module}")

    def text() -> str:
        return xh2415.output("env", "TERM=xterm", "COLUMNS=120", sys.executable, "-m", module, *options)

    def cards() -> list[type_card]:
        read = json.loads(text())["gpus"]
        assert [[each["gpu_memory_usage"] for each in card["processes"]] for card in read] == [[42000]] * len(read)
        rows = [(card["memory.used"], card["memory.total"], card["utilization.gpu"]) for card in read]
        known = [card[:2] for card in shown_by_nvml(xh2415)[1]]
        assert [card["uuid"] for card in read] == [uuid for uuid, _ in known]
        return [[*ids, *row] for ids, row in zip(known, rows, strict=True)]

    def is_whole(screen: str) -> bool:
        return screen.count("41.02GiB / 80.00GiB") == 4 and screen.count("100%") >= 4

    if module == "gpustat":
        assert_shows_the_cards(xh2415, cards)
    else:
        assert within(PATIENCE_S, lambda: is_whole(text()))


# ---- joules --------------------------------------------------------------------------------------------------------

METERS = """
import glob, json, time, warnings
import pynvml as n
warnings.simplefilter("ignore")
n.nvmlInit()
cards = [n.nvmlDeviceGetHandleByIndex(index) for index in range(n.nvmlDeviceGetCount())]
zones = sorted(glob.glob("/sys/class/powercap/intel-rapl:?/energy_uj"))
def meters():
    of_cards = [n.nvmlDeviceGetTotalEnergyConsumption(card) / 1e3 for card in cards]
    return of_cards + [int(open(zone).read()) / 1e6 for zone in zones]
def between(first, second):
    return [later - earlier for earlier, later in zip(first, second)]
"""
"""The counters of the model: of the four cards, then of the two packages; joules."""


def joules(node: ServedNode, prepare: str, begin: str, end: str, measured: str) -> tuple[list[float], ...]:
    """What a program has measured, and what the counters moved while it certainly and at most did so."""
    window = f"outer = meters(); {begin}; inner = meters(); time.sleep(1.5); inner = between(inner, meters()); {end}"
    report = f"outer = between(outer, meters()); print(json.dumps([inner, {measured}, outer]))"
    inner, read, outer = by_foreign_python(node, f"{METERS}\n{prepare}\n{window}\n{report}")
    assert all(each > 0 for each in inner)
    return inner, read, outer


def is_between(inner: list[float], read: list[float], outer: list[float]) -> bool:
    """Up to the rounding of counters to millijoules and of programs to watts times seconds."""
    return all(low - 0.1 <= shown <= high + 0.1 for low, shown, high in zip(inner, read, outer, strict=True))


@foreign
def test_pyjoules_measures_the_joules_of_packages_and_cards(xh2415: ServedNode) -> None:
    inner, read, outer = joules(
        xh2415,
        "from pyJoules.device.device_factory import DeviceFactory as F; from pyJoules.energy_meter import EnergyMeter\n"
        "devices = F.create_devices(); meter = EnergyMeter(devices)",
        "meter.start(tag='x')",
        "meter.stop()",
        "[v / 1e3 if 'gpu' in k else v / 1e6 for k, v in sorted(meter.get_trace()[0].energy.items())]",
    )
    assert len(read) == 6 and is_between(inner, read, outer)


@foreign
def test_zeus_measures_the_joules_of_the_cards(xh2415: ServedNode) -> None:
    inner, read, outer = joules(
        xh2415,
        "from zeus.monitor import ZeusMonitor; monitor = ZeusMonitor()",
        "monitor.begin_window('x', sync_execution=False)",
        "read = monitor.end_window('x', sync_execution=False)",
        "[read.gpu_energy[index] for index in range(len(cards))]",
    )
    assert is_between(inner[:4], read, outer[:4])


@foreign
def test_codecarbon_measures_the_joules_of_the_node(xh2415: ServedNode) -> None:
    inner, read, outer = joules(
        xh2415,
        "from codecarbon import OfflineEmissionsTracker as Tracker\n"
        "tracker = Tracker(country_iso_code='FRA', measure_power_secs=1, save_to_file=False, log_level='critical')",
        "tracker.start()",
        "tracker.stop(); d = tracker.final_emissions_data",
        "[d.gpu_energy * 3.6e6, d.cpu_energy * 3.6e6, d.gpu_count, d.cpu_count, d.cpu_model]",
    )
    sums = [[sum(each[:4]), sum(each[4:])] for each in (inner, outer)]
    assert is_between(sums[0], read[:2], sums[1])
    assert read[2:] == [4, 96, "AMD EPYC 7402 24-Core Processor"]
