"""Monitoring programs on a served twin: what they report is what its files say at that time.

None is installed (tests/twin/foreign.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.twin.foreign import laid, why_not_foreign
from tests.twin.served_node import ServedNode, why_not_served

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)

if why_not_foreign():
    pytest.skip(why_not_foreign(), allow_module_level=True)

CPUS = 24
CAPPED_CPU, CAPPED_KHZ = 5, 1_800_000
MAX_KHZ = f"/sys/devices/system/cpu/cpu{CAPPED_CPU}/cpufreq/scaling_max_freq"
ENERGY = "/sys/class/powercap/intel-rapl:0/energy_uj"
ZONE, ZONE_C = "/sys/class/thermal/thermal_zone0/temp", 47
SENSOR, SENSOR_C = "/sys/class/hwmon/hwmon0/temp1_input", 51
"""Held at these values: within one scrape, hpl's phases change a die's temperature by some degrees."""


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    with ServedNode("skylake-6146", "--workload", "hpl") as served:
        served.output("sh", "-c", f"echo {CAPPED_KHZ} >{MAX_KHZ}")
        for path, celsius in ((ZONE, ZONE_C), (SENSOR, SENSOR_C)):
            served.twin("fault", "add", "stuck", path, f"value={celsius * 1000}")
        yield served


# ---- prometheus-node-exporter --------------------------------------------------------------------------------------

COLLECTORS = " ".join(
    f"--collector.{name}"
    for name in ("cpu", "cpu.info", "cpufreq", "rapl", "thermal_zone", "hwmon", "powersupplyclass")
)

EXPORTER = f"""
prometheus-node-exporter --collector.disable-defaults {COLLECTORS} \\
    --web.listen-address=127.0.0.1:0 2>/run/exporter.log & exporter=$!
state() {{ echo $1 $(cat {ENERGY}); }}
until port=$(grep -o -m 1 'address=127.0.0.1:[0-9]*' /run/exporter.log); do kill -0 $exporter; sleep 0.1; done
state before
python3 -c 'import sys, urllib.request as web; print(web.urlopen(sys.argv[1]).read().decode())' \\
    http://${{port#address=}}/metrics
state after
kill $exporter
"""


def test_node_exporter_exports_the_nodes_clocks_energies_and_temperatures(node: ServedNode) -> None:
    found = dict(line.rsplit(" ", 1) for line in laid(node, EXPORTER).splitlines() if line and line[0] != "#")
    values = {name: float(value) for name, value in found.items() if re.fullmatch(r"[-+.e0-9]+", value)}
    assert sum(name.startswith("node_cpu_scaling_frequency_hertz") for name in values) == CPUS
    assert values[f'node_cpu_scaling_frequency_max_hertz{{cpu="{CAPPED_CPU}"}}'] == CAPPED_KHZ * 1e3
    assert values[f'node_cpu_scaling_frequency_hertz{{cpu="{CAPPED_CPU}"}}'] == CAPPED_KHZ * 1e3
    assert values['node_cpu_frequency_max_hertz{cpu="0"}'] == 3.2e9
    assert 'package="1"' in next(name for name in values if name.startswith("node_cpu_info") and 'cpu="23"' in name)
    joules = values['node_rapl_package_joules_total{index="0",path="/sys/class/powercap/intel-rapl:0"}']
    assert values["before"] * 1e-6 <= joules <= values["after"] * 1e-6
    busy_s = [values[f'node_cpu_seconds_total{{cpu="{cpu}",mode="user"}}'] for cpu in range(CPUS)]
    assert min(busy_s) > 0 and max(busy_s) - min(busy_s) <= 0.05  # hpl occupies all CPUs
    assert values['node_thermal_zone_temp{type="x86_pkg_temp",zone="0"}'] == ZONE_C
    assert values['node_hwmon_temp_celsius{chip="platform_coretemp_0",sensor="temp1"}'] == SENSOR_C
    failed = [name for name, value in values.items() if "collector_success" in name and value != 1]
    assert failed == []


# ---- collectd ------------------------------------------------------------------------------------------------------

COLLECTD = f"""
cat >/run/collectd.conf <<'END'
Hostname node
Interval 1
TypesDB "/usr/share/collectd/types.db"
LoadPlugin csv
<Plugin csv>
    DataDir "/run/collected"
    StoreRates true
</Plugin>
LoadPlugin cpu
LoadPlugin cpufreq
LoadPlugin sensors
LoadPlugin thermal
END
collectd -f -C /run/collectd.conf -P /run/collectd.pid >/run/collectd.log 2>&1 & collectd=$!
cd /run
until [ "$(cat collected/node/cpu-0/cpu-user-* 2>/dev/null | wc -l)" -gt 3 ]; do kill -0 $collectd; sleep 0.1; done
kill $collectd; wait $collectd || true
cd collected/node
for each in cpufreq-{CAPPED_CPU}/cpufreq cpu-{CAPPED_CPU}/cpu-user thermal-thermal_zone0/temperature \\
    sensors-coretemp-isa-0000/temperature-temp1; do
    echo $each $(tail -n 1 $each-2*)
done
ls -d cpufreq-* | wc -l
"""


def test_collectd_writes_the_nodes_load_clocks_and_temperatures(node: ServedNode) -> None:
    *rows, clocks = laid(node, COLLECTD).splitlines()
    assert int(clocks) == CPUS
    values = {row.split()[0]: float(row.split()[-1].split(",")[-1]) for row in rows}
    assert values[f"cpufreq-{CAPPED_CPU}/cpufreq"] == CAPPED_KHZ * 1e3
    assert values[f"cpu-{CAPPED_CPU}/cpu-user"] == pytest.approx(100, abs=25)  # per cent; collectd's clock is its own
    assert values["thermal-thermal_zone0/temperature"] == ZONE_C
    assert values["sensors-coretemp-isa-0000/temperature-temp1"] == SENSOR_C


# ---- powertop ------------------------------------------------------------------------------------------------------


POWERTOP = "cd /run; powertop --csv=/run/powertop.csv --time=1 >/run/powertop.log 2>&1; cat powertop.csv"


def idle_shares(report: str, state: str) -> list[float]:
    """Per cent of the time, by CPU."""
    return [float(share) for share in re.findall(rf"(?m)^{state}; *([0-9.]+)%;", report)]


def test_powertop_finds_the_processors_of_a_busy_node_never_idle(node: ServedNode) -> None:
    report = laid(node, POWERTOP)
    assert f"CPU Information;{CPUS} Intel(R) Xeon(R) Gold 6146 CPU @ 3.20GHz" in report
    assert re.findall(r"(?m)^CPU;(\d+)$", report)[:CPUS] == [str(cpu) for cpu in range(CPUS)]
    assert {state: idle_shares(report, state) for state in ("POLL", "C1", "C6")} == dict.fromkeys(
        ("POLL", "C1", "C6"), [0.0] * CPUS
    )


def test_powertop_finds_the_processors_of_an_idle_node_asleep() -> None:
    with ServedNode("skylake-6146") as idle:
        report = laid(idle, POWERTOP)
    assert len(idle_shares(report, "C6")) == CPUS
    assert min(idle_shares(report, "C6")) > 50  # about 99; the twin may be a while behind at its begin


# ---- what administrators start by hand -----------------------------------------------------------------------------


def test_mpstat_counts_a_busy_node_by_its_numa_nodes(node: ServedNode) -> None:
    report = laid(node, "S_TIME_FORMAT=ISO mpstat -N ALL -o JSON 1 1; mpstat -P ALL 1 1 | tail -n +4")
    statistics = json.loads(report[: report.rindex("}") + 1])["sysstat"]["hosts"][0]
    assert statistics["number-of-cpus"] == CPUS
    (sample,) = statistics["statistics"]
    assert {load["node"]: load["usr"] for load in sample["node-load"]} == {"all": 100.0, "0": 100.0, "1": 100.0}
    averages = re.findall(r"(?m)^Average:\s+(\d+)\s+100.00", report)
    assert averages == [str(cpu) for cpu in range(CPUS)]


def test_inxi_prints_the_nodes_processors_clocks_and_temperature(node: ServedNode) -> None:
    report = laid(node, "inxi -C -s -c 0 -y 400")
    assert "2x 12-core model: Intel Xeon Gold 6146 bits: 64 type: MCP SMP" in report
    assert "min/max: 1200/3200" in report
    assert f" {CAPPED_CPU + 1}: {CAPPED_KHZ // 1000} " in report  # it counts from 1
    assert re.search(r"System Temperatures: cpu: [2-8]\d\.0 C", report)


def test_cpufrequtils_read_and_set_a_clock(node: ServedNode) -> None:
    script = "cpufreq-info -c 7; cpufreq-set -c 7 -u 1500MHz; cpufreq-info -c 7 -p; cpufreq-set -c 7 -u 3200MHz"
    report = laid(node, script).splitlines()
    assert "  driver: intel_cpufreq" in report
    assert "  hardware limits: 1.20 GHz - 3.20 GHz" in report
    assert report[-1] == "1200000 1500000 schedutil"


def test_stress_ng_counts_events_and_stays_on_its_emulated_cpu(node: ServedNode) -> None:
    report = laid(node, f"stress-ng --taskset {CAPPED_CPU} --cpu 1 --cpu-ops 200 --perf --tz -v 2>&1")
    assert f"{CPUS} processors online, {CPUS} processors configured" in report
    assert re.search(r"[1-9][0-9]* CPU Cycles", report) and re.search(r"[1-9][0-9]* Branch Instructions", report)
    assert re.search(rf"x86_pkg_temp0 +{ZONE_C}.00 C", report)


def test_htop_shows_every_emulated_cpu(node: ServedNode) -> None:
    report = laid(node, "printf q | TERM=xterm COLUMNS=200 LINES=60 htop -C")
    shown = re.sub(r"\x1b[^a-zA-Z]*[a-zA-Z]|\x1b\(B", "", report)
    assert {int(cpu) for cpu in re.findall(r"(\d+)\[", shown)} >= set(range(CPUS))


def test_cpufetch_counts_the_emulated_cpus_but_names_the_hosts_processor(node: ServedNode) -> None:
    report = laid(node, "cpufetch --logo-short 2>/dev/null | sed 's/\\x1b\\[[0-9;]*m//g'")
    assert re.search(rf"\({CPUS} threads\)|Cores(?: \(Total\))?: +{CPUS} cores", report)
    assert re.search(r"Max Frequency: +3.200 GHz", report)
    assert "Gold 6146" not in report  # CPUID is the host's
