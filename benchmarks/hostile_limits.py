"""A root program on a capped node loosens the limits that enforce the cap: is a watt drawn that is not counted?

`clusterctl serve` and the real agent on a served node, with their links, keys and leases. A program of root on the node
loosens a limit, in one of these ways, and at the same moment all clock limits:

    file      the package limits in powercap, far above what the hardware takes
    zero      the same, to 0, which this hardware takes for "no limit"
    off       the switch of the packages' zones
    window    a window of minutes for the long-term limits, next to high short-term limits
    msr       the register of the package limits, by /dev/cpu/0/msr and that of the other package
    nvml      the limits of the GPU boards

Each *once*, and in a *loop* without a pause for some seconds. Truth is the joules of the model's packages and GPUs,
read outside of the node ten times a second, and what the node draws besides (`rest_w`). What is counted is what the
cluster agent says of the node. Judged: the longest time for which the true power was above what was counted, with the
tolerance by which the node itself judges a cap, 2 %. Shown: the same above the cap, and how many alarms the node
logged. Not tried: the bit that locks a register until the next boot, which the twin's powercap files do not obey.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.experiment import save
from foundation.wire.keys import read_public
from foundation.wire.power_messages import CAP_TOLERANCE
from tests.fabric.cluster import Cluster
from tests.twin.served_node import ServedNode, why_not_served
from twin.serve.control import send_request
from twin.serve.namespace import CONTROL

REST_W: Final = 60.0
MOST_S: Final = 2.0
LOOP_S: Final = 4.0
LOOK_S: Final = 0.1
PATIENCE_S: Final = 300.0
ALARM: Final = "ALARM: "

OF_PACKAGES: Final = ("file", "zero", "off", "window", "msr")
NODES: Final[dict[str, tuple[str, str, float, float, tuple[str, ...]]]] = {
    "packages": ("skylake-6146", "hpl", 300.0, 240.0, OF_PACKAGES),
    "boards": ("v100", "v100:BScholes", 240.0, 215.0, ("nvml",)),
}
"""Machine, workload, budget and MOP in watts, and ways."""

WRITE: Final = """
import glob, os, sys, time
way, seconds = sys.argv[1], float(sys.argv[2])
zones = sorted(path for path in glob.glob("/sys/class/powercap/intel-rapl:*") if path.count(":") == 1)
clocks = glob.glob("/sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq")
highest = {path: open(path.replace("scaling_max_freq", "cpuinfo_max_freq")).read() for path in clocks}
def put(path, text):
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        pass
def register():
    package_of = {}
    for path in glob.glob("/sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id"):
        package_of.setdefault(open(path).read(), path.split("/cpu")[-1].split("/")[0])
    for cpu in package_of.values():
        fd = os.open(f"/dev/cpu/{cpu}/msr", os.O_RDWR)
        try:
            before = int.from_bytes(os.pread(fd, 8, 0x610), "little")
            os.pwrite(fd, high(before).to_bytes(8, "little"), 0x610)
        except OSError:
            pass
        os.close(fd)
def high(value):
    return value & ~0x7FFF & ~(0x7FFF << 32) | 700 * 8 | 900 * 8 << 32
def loosen():
    for zone in zones:
        if way == "file":
            put(zone + "/constraint_0_power_limit_uw", "700000000")
        elif way == "zero":
            put(zone + "/constraint_0_power_limit_uw", "0")
        elif way == "off":
            put(zone + "/enabled", "0")
        elif way == "window":
            put(zone + "/constraint_0_time_window_us", "400000000")
            put(zone + "/constraint_1_power_limit_uw", "900000000")
    if way == "msr":
        register()
    if way == "nvml":
        for n in range(pynvml.nvmlDeviceGetCount()):
            board = pynvml.nvmlDeviceGetHandleByIndex(n)
            most = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(board)[1]
            pynvml.nvmlDeviceSetPowerManagementLimit(board, most)
    for path, text in highest.items():
        put(path, text)
if way == "nvml":
    import pynvml
    pynvml.nvmlInit()
end_s = time.monotonic() + seconds
loosen()
while time.monotonic() < end_s:
    loosen()
"""


class Watch:
    """Looks at truth and count until it is stopped. ``rows``: (monotonic s, true W, counted W, cap W)."""

    def __init__(self, cluster: Cluster, control: str) -> None:
        self._cluster, self._control = cluster, control
        self.rows: list[tuple[float, float, float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _true(self) -> tuple[float, float, float]:
        """When, and the model's own time and joules of what limits bound."""
        at_s = time.monotonic()
        report = send_request(self._control, "report")
        parts = report["energy_j"]
        return at_s, report["time_s"], sum(parts[part] for part in parts if part.startswith(("package", "gpu")))

    def _look(self) -> None:
        _, before_s, before_j = self._true()
        while not self._stop.wait(LOOK_S):
            at_s, now_s, now_j = self._true()
            rows = self._cluster.ask("nodes")
            if now_s > before_s and rows:
                watts = (now_j - before_j) / (now_s - before_s) + REST_W
                self.rows.append((at_s, watts, rows[0]["counts_w"], rows[0]["granted_w"] or 0.0))
                before_s, before_j = now_s, now_j

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def longest_s(rows: Sequence[tuple[float, float, float, float]], column: int) -> float:
    """The longest time for which the true power was above this column without a pause."""
    longest, since = 0.0, None
    for row in rows:
        if row[1] <= CAP_TOLERANCE * row[column]:
            since = None
            continue
        since = row[0] if since is None else since
        longest = max(longest, row[0] - since + LOOK_S)
    return longest


def control_of(node: ServedNode) -> str:
    """The control socket of this run's twin, as it is reached from outside of it."""
    below = psutil.Process(node._process.pid).children(recursive=True)
    paths = [f"/proc/{process.pid}/root{CONTROL}" for process in below]
    return next(path for path in paths if Path(path).exists())


def settings(cluster: Cluster, at: Path, mop_w: float) -> Path:
    path = at / "node.toml"
    path.write_text(
        f'mode = "optimize"\nstate_dir = "{at}/state"\n[caps]\nrest_w = {REST_W}\n[cpu_policy]\nname = "none"\n'
        f'[gpu_policy]\nname = "none"\n[gpu]\nlocked_clock_mhz = 0\n[cluster]\nurl = "{cluster.url}"\n'
        f'key = "{cluster.keys}/twin.key"\nserver_key = "{read_public(str(cluster.keys / "cluster.key"))}"\n'
        f'tdp_w = 500.0\nmop_w = {mop_w}\nsafe_w = {mop_w}\nboot_w = {mop_w}\nsettle_s = 0.5\nname = "twin"\n'
    )
    return path


def trials(which: str, times: int, seconds: float) -> list[dict[str, Any]]:
    """Each way of this node, once and in a loop, so many times."""
    machine, workload, budget_w, mop_w, ways = NODES[which]
    found = []
    with tempfile.TemporaryDirectory() as directory:
        at = Path(directory)
        with Cluster(at, budget_w) as cluster, ServedNode(machine, "--workload", workload) as node:
            cluster.allow("twin")
            cluster.serve()
            log = at / "agent.log"
            start = f"nice -n -10 {sys.executable} -m nodectl.cli run --config {settings(cluster, at, mop_w)}"
            node.output("sh", "-c", f"{start} >{log} 2>&1 & echo $! >{at}/pid")
            watch = Watch(cluster, control_of(node))
            try:
                for n in range(times):
                    for way in ways:
                        for is_loop in (False, True):
                            _until_capped(watch, log)
                            found.append(
                                {"way": way, "loop": is_loop, "n": n, **_once(node, watch, log, way, is_loop, seconds)}
                            )
                            print(json.dumps(found[-1]), file=sys.__stdout__, flush=True)
            finally:
                watch.stop()
                node.output("sh", "-c", f"kill $(cat {at}/pid); sleep 2")
    return found


def _until_capped(watch: Watch, log: Path) -> None:
    """Until the cap is in force again, and nothing else counts."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s and watch.is_alive:
        last = watch.rows[-5:]
        if len(last) == 5 and all(0 < row[2] <= row[3] and row[1] <= CAP_TOLERANCE * row[3] for row in last):
            return
        time.sleep(LOOK_S)
    raise SystemExit(f"the node is not capped: {watch.rows[-5:]}\n{log.read_text()[-2000:]}")


def _once(node: ServedNode, watch: Watch, log: Path, way: str, is_loop: bool, seconds: float) -> dict[str, Any]:
    before, first_s = len(log.read_text()), time.monotonic()
    node.python(WRITE, way, str(seconds if is_loop else 0.0))
    time.sleep(MOST_S + 1.0)
    rows = [row for row in watch.rows if row[0] >= first_s]
    alarms = [line for line in log.read_text()[before:].splitlines() if ALARM in line]
    return {
        "uncounted_s": longest_s(rows, 2),
        "above_cap_s": longest_s(rows, 3),
        "most_w": max(row[1] for row in rows),
        "most_counted_w": max(row[2] for row in rows),
        "alarms": len(alarms),
        "rows": len(rows),
    }


def summary(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each way."""
    rows = []
    for key in dict.fromkeys((one["way"], one["loop"]) for one in found):
        of_it = [one for one in found if (one["way"], one["loop"]) == key]
        worst = {name: max(one[name] for one in of_it) for name in ("uncounted_s", "above_cap_s", "most_w")}
        late = sum(one["uncounted_s"] > MOST_S for one in of_it)
        rows.append({"way": key[0], "loop": key[1], "trials": len(of_it), "late": late, **worst})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile_limits", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="each way twice")
    parser.add_argument("--times", type=int, help="how often each way is tried (default: 50)")
    parser.add_argument("--nodes", default=",".join(NODES), help="which of %(default)s")
    options = parser.parse_args(arguments)
    if why := why_not_served():
        print(f"not measured: {why}")
        return 1
    times = options.times or (2 if options.quick else 50)
    found = [one for which in options.nodes.split(",") for one in trials(which, times, LOOP_S)]
    rows = summary(found)
    print(f"{'way':8}{'':6}{'trials':>8}{'late':>6}{'uncounted s':>13}{'above cap s':>13}{'most W':>8}")
    for row in rows:
        kind = "loop" if row["loop"] else "once"
        print(
            f"{row['way']:8}{kind:6}{row['trials']:8}{row['late']:6}{row['uncounted_s']:13.1f}"
            f"{row['above_cap_s']:13.1f}{row['most_w']:8.0f}"
        )
    print("JSON:", save("hostile_limits", {"rows": rows, "trials": found, "most_s": MOST_S}))
    return int(any(row["late"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
