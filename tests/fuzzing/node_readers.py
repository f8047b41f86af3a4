"""Readers of what was measured of a node, and of the files of an emulated one."""

from __future__ import annotations

import math
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

from calibration.gpu_table.clock_sweep import Row as GpuRow
from calibration.gpu_table.gpu_table import GpuTable, read_gpu_table, write_gpu_table
from calibration.table.table_exchange import table_from_csv
from calibration.table.table_file import read_table, write_table
from foundation.sealed_file import SEAL
from foundation.shell.errors import NodectlError
from nodectl.calibrated.node_calibration import read_head
from nodectl.calibrated.node_identity import Identity
from tests.fuzzing.fuzzer import Reader, sound
from twin.errors import TwinError
from twin.fit.sweep import read_sweep
from twin.machine import MACHINES
from twin.machine import load_machine as load_twin
from twin.physics.families import trace_table
from twin.programs.workload import WorkloadTable
from twin.toml_table import read_toml as read_twin_toml

IDENTITY: Final = Identity("cpu", "0x1", 1, 8, 16, "fw", "6.1", "intel_pstate", ("gpu",), "550", "n0")
SWEEP: Final = "kernel,level,cores,khz,units_per_s,package_w,node_w\n" + "".join(
    f"{kernel},all,8,{khz},{khz / 1e5:.1f},{40 + khz / 1e5:.1f},{90 + khz / 1e5:.1f}\n"
    for kernel in ("compute", "memory")
    for khz in (1_000_000, 2_000_000, 3_000_000)
)
CARD: Final = "workload,card,clock_mhz,power_w,time_s,suspect\n# measured\n" + "".join(
    f"gemm,a,{mhz},{100 + mhz / 10:.1f},{10_000 / mhz:.2f},\n" for mhz in (800, 1000, 1200, 1400)
)
SPEEDS: Final = "gpu,workload,core_mhz,mean_power_w,relative_performance\n" + "".join(
    f"a,gemm,{mhz},{100 + mhz / 10:.1f},{mhz / 1400:.3f}\n" for mhz in (800, 1000, 1200, 1400)
)
TRACE: Final = "unit,phase,seconds,beta,activity\ncpu,one,1.0,0.5,0.5\ncpu,two,2.0,0.2,0.9\n"


def _external_sweep(path: Path) -> Any:
    table = table_from_csv(path, IDENTITY, "2026-01-01", "2026-06-01")
    sound(all(point.khz > 0 and point.package_w >= 0 and point.units_per_s >= 0 for point in table.points), "no point")
    return [[point.kernel, point.level, point.khz, point.package_w] for point in table.points]


def _card_sweep(path: Path) -> Any:
    curves = read_sweep(path)
    sound(all(list(one.clock_mhz) == sorted(set(one.clock_mhz)) for one in curves), "clocks out of order")
    sound(all(min(one.power_w) > 0 for one in curves), "no watts")
    return [[one.workload, one.clock_mhz, one.power_w, one.speed] for one in curves]


def _trace(path: Path) -> Any:
    table = trace_table(path)
    phases = [phase for group in (*table.cpu, *table.gpu) for phase in group.phase]
    sound(bool(phases) and all(0 < phase.seconds < math.inf for phase in phases), "no phase")
    return [[phase.name, phase.seconds] for phase in phases]


@cache
def _made(write: str) -> str:
    """A sealed table, without its seal."""
    with tempfile.TemporaryDirectory() as folder:
        path, sweep = Path(folder, "table"), Path(folder, "sweep.csv")
        sweep.write_text("\n".join(SWEEP.split("\n")[:3]))  # two rows, since tomllib takes long
        if write == "cores":
            write_table(path, table_from_csv(sweep, IDENTITY, "2026-01-01", "2026-06-01"))
        else:
            rows = tuple(GpuRow(mhz, mhz, 3, 10.0, 5.0, 200.0, 1.0, mhz / 1400, 0.01, 1.1, 0.01) for mhz in (700, 1400))
            write_gpu_table(
                path,
                GpuTable(2, "./a", "A100", 4, True, True, 50.0, "2026-01-01", "2026-06-01", IDENTITY, rows),
            )
        return path.read_text().rpartition(SEAL)[0]


def _table(path: Path) -> Any:
    return [[point.kernel, point.khz] for point in read_table(path).points]


def _gpu_table(path: Path) -> Any:
    rows = read_gpu_table(path).gpu_rows
    sound(all(row.mhz > 0 and 0 < row.watts < math.inf and row.speed > 0 for row in rows), "no row")
    return [[row.mhz, row.watts, row.speed] for row in rows]


def _head(path: Path) -> Any:
    head = read_head(path)
    return [head.identity, head.policies, [latency.knob for latency in head.latency]]


def _twin_machine(path: Path) -> Any:
    machine = load_twin(str(path))
    sound(machine.cores > 0, "a machine without cores")
    return [machine.name, machine.cores]


TWIN: Final = """\
name = "small"
summary = "x"
[cpu]
vendor = "GenuineIntel"
model_name = "x"
family = 6
model = 85
stepping = 4
sockets = 2
cores_per_socket = 12
threads_per_core = 1
tsc_khz = 3200000
events = ["cycles", "reference-cycles", "instructions", "llc-misses"]
[frequency]
driver = "intel_cpufreq"
governors = ["userspace", "schedutil"]
governor = "schedutil"
domain = "core"
min_khz = 1200000
max_khz = 3200000
base_khz = 3200000
step_khz = 100000
latency_us = 20
[power]
volts = [[1200, 0.72], [3200, 1.02]]
dynamic_w = 8.6
leak_w_per_v = 0.9
[heat]
ambient_c = 28.0
die_k_per_w = 0.12
die_j_per_k = 70.0
sink_k_per_w = 0.16
sink_j_per_k = 450.0
[[zone]]
kind = "package"
range_uj = 262143328850
unit_uj = 61.03515625
writable = true
constraints = [{ name = "long_term", limit_w = 165.0, window_us = 999424, max_w = 165.0 }]
"""
"""What a machine file must have, and a zone."""

WORKLOAD: Final = """\
name = "triad"
summary = "x"
source = "ours"
[[cpu]]
cpus = "cores"
repeat = 6
wait = "spin"
imbalance = 0.02
[[cpu.phase]]
name = "triad"
seconds = 2.0
beta = 0.208
activity = 0.62
ipc = 0.55
iterations = 50
"""


def _twin_workload(path: Path) -> Any:
    table = read_twin_toml(path, WorkloadTable)
    return [table.name, [phase.seconds for group in table.cpu for phase in group.phase]]


def of_nodes() -> dict[str, Reader]:
    """By name."""
    node, twin = (NodectlError,), (TwinError,)
    whole = re.sub(r"(?m)^#.*\n|[ \t]+#.*", "", (MACHINES / "a100.toml").read_text())
    cores, gpus = _made("cores"), _made("gpus")
    return {
        "external sweep": Reader((SWEEP,), _external_sweep, node, ","),
        "core table": Reader((cores,), _table, node, has_seal=True),
        "gpu table": Reader((gpus,), _gpu_table, node, has_seal=True),
        "node calibration": Reader((cores,), _head, node, has_seal=True),
        "card sweep": Reader((CARD, SPEEDS), _card_sweep, twin, ","),
        "phase trace": Reader((TRACE,), _trace, twin, ","),
        "twin machine": Reader((*[TWIN] * 5, whole), _twin_machine, twin),
        "twin workload": Reader((WORKLOAD,), _twin_workload, twin),
    }
