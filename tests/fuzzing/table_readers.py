"""Readers of what a site brings: prices, weather, cooling, GPU pairs, clusters, failures, and answers of its Slurm and
of a node's BMC."""

from __future__ import annotations

import itertools
import math
import tempfile
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np

from cluster_agent.budget.sharers.node_factors import read_factors
from cluster_agent.cluster import Machine
from cluster_agent.errors import ClusterError
from cluster_agent.library.site_switches import _read_failures, _read_reservations
from cluster_agent.prices.cooling import read_pue, read_temperatures
from cluster_agent.prices.price_table import read_spells
from cluster_agent.scheduler.power_cap import UNCAPPED
from cluster_agent.scheduler.switches.reservations import DAY_S, WEEK_S
from cluster_agent.sharing.gpu_jobs import EXCLUSIVE, read_jobs
from cluster_agent.sharing.pair_table import read_pairs
from cluster_agent.slurm.queue_json import jobs_on_nodes
from cluster_agent.thermal_hazard.inlet_tables import HIGHEST_C, LOWEST_C, read_inlets
from cluster_agent.workloads.clusters.cluster_table import read_clusters
from cluster_agent.workloads.clusters.node_requests import read_requests
from cluster_agent.workloads.job_log import LONGEST_S
from foundation.foreign_text import TextError, foreign_text
from foundation.mqtt.mqtt_settings import read_mqtt_settings
from foundation.shell.errors import NodectlError
from pmu.bmc.bmc_inlets import MOST_C, inlets
from tests.fuzzing.fuzzer import Reader, sound
from tests.fuzzing.job_readers import NODES, node_jobs
from tests.fuzzing.packed_readers import Tables, packed

PRICES: Final = "time,price\n2030-03-31T00:00:00+01:00,40.5\n2030-03-31T01:00:00+01:00,-3\n2030-03-31T03:00:00Z,\n"
LOCAL: Final = "local_date,local_time,price\n2030-10-27,01:30,9\n2030-10-27,02:30,8\n2030-10-27,02:30,7\n"
PARIS: Final = ZoneInfo("Europe/Paris")


def known(values: Any) -> list[Any]:
    """None for what is not known."""
    return [None if math.isnan(value) else value for value in values]


def _prices(path: Path) -> Any:
    spells = read_spells(str(path), "price", PARIS)
    sound(all(one.from_s < one.to_s for one in spells), "no time")
    sound(all(one.to_s == after.from_s for one, after in itertools.pairwise(spells)), "a hole")
    return [[one.from_s, one.to_s, *known([one.value])] for one in spells]


def _temperatures(path: Path) -> Any:
    found = read_temperatures(str(path))
    sound(bool((np.diff(found.from_s) > 0).all()) and found.to_s > found.from_s[-1], "out of order")
    return [found.from_s.tolist(), found.celsius.tolist(), found.to_s, found.at(int(found.from_s[-1]))]


def _pue(path: Path) -> Any:
    table = read_pue(str(path))
    sound(bool((table.pue >= 1).all() and (table.pue < 10).all() and (table.watts >= 0).all()), "no PUE")
    sound(bool((np.diff(table.celsius) > 0).all() and (np.diff(table.watts) > 0).all()), "out of order")
    return [table.celsius.tolist(), table.watts.tolist(), table.pue.tolist()]


PAIRS: Final = """\
gpu,application,batch_size,partner,partner_batch_size,steps_per_s,partner_steps_per_s
v100,lm,20,,,10.5,
v100,resnet,64,,,4,
v100,lm,20,resnet,64,7.5,3
v100,lm,20,lm,20,6,6.5
"""


def _pairs(path: Path) -> Any:
    table = read_pairs(str(path))
    speed = table.speed[~np.isnan(table.speed)]
    sound(table.speed.shape == (len(table.variants),) * 2 and len(table.variants) > 0, "no square")
    sound(bool((speed >= 0).all() and (speed <= 1).all()), "faster than alone, or less than nothing")
    return [table.gpu, table.variants, [known(row) for row in table.speed.tolist()]]


GPU_JOBS: Final = (
    "job,application,batch_size,hours,memory_gib,share\n1,lm,20,2.5,8,\n2,resnet,64,1,,0.6\n3,lm,20,9,4,exclusive\n"
)


def _gpu_jobs(path: Path) -> Any:
    jobs = read_jobs(str(path), 32.0)
    sound(len({one.job for one in jobs}) == len(jobs) > 0, "no job, or one twice")
    sound(all(0 < one.hours < math.inf and not one.memory_gib > 32 for one in jobs), "a job that cannot be")
    sound(all(not (one.floor < 0 or 1 < one.floor < EXCLUSIVE) for one in jobs), "a floor that is none")
    return [[one.job, one.variant, one.hours, *known([one.memory_gib, min(one.floor, 9)])] for one in jobs]


CLUSTERS: Final = "cluster\tnodes\tcores_per_node\tmem_kb\tspeed\nbig\t2\t80\t536870912\t1\nsmall\t3\t12\t\t1.0\n"


def _clusters(path: Path) -> Any:
    machine = read_clusters(str(path))
    sound(bool(machine.groups), "no cluster")
    sound(all(group.count > 0 and group.cores > 0 and group.memory_gb > 0 for group in machine.groups), "no nodes")
    return [[group.name, group.count, group.cores, group.memory_gb] for group in machine.groups]


@cache
def _two_clusters() -> Machine:
    with tempfile.NamedTemporaryFile("w", suffix=".machines.tsv") as file:
        file.write(CLUSTERS)
        file.flush()
        return read_clusters(file.name)


REQUESTS: Final = """\
; MaxProcs: 196
1 0 0 100 16 -1 -1 16 600 1048576 1 1 1 -1 1 -1 -1 -1 {7,7} long 2:ppn=8:cl_big
2 10 20 300 8 -1 -1 8 600 -1 1 2 1 -1 1 -1 -1 -1 {9} short 1:ppn=8:^cl_small:mem=4gb#excl
3 15 5 60 3 -1 1024 3 -1 2048 5 2 1 -1 1 -1 2 10 {1} short 1:ppn=2+1:small3
4 16 5 60 3 -1 1024 3 -1 2048 1 2 1 -1 1
"""


def _requests(path: Path) -> Any:
    return node_jobs(read_requests(str(path), _two_clusters()).on(NODES, UNCAPPED))


FAILURES: Final = "at_s,back_s,first,last\n100,200,0,7\n150,900,8,15\n1000,1100,0,63\n"


def _failures(path: Path) -> Any:
    found = _read_failures(str(path), 64).failures
    sound(all(0 <= one.at_s <= one.back_s <= LONGEST_S and 0 <= one.first <= one.last < 64 for one in found), "none")
    sound(list(found) == sorted(found), "out of order")
    return found


RESERVATIONS: Final = """\
from_s,to_s,every_s,made_s,gone_s,processors,jobs
100,200,0,0,,7,1 2
150,900,86400,100,5000,32,
1000,1100,604800,-5,,16,3
"""


def _reservations(path: Path) -> Any:
    found, jobs, _ = _read_reservations(str(path), 64, 10 * WEEK_S)
    sound(
        all(0 < one.length_s <= (one.every_s or LONGEST_S) and one.every_s in (0, DAY_S, WEEK_S) for one in found),
        "times",
    )
    sound(all(max(map(abs, one[:4])) <= LONGEST_S and 0 < one.width <= 64 for one in found), "beyond")
    for at_s in [at_s for one in found for at_s in (one.from_s, one.to_s - 1, one.from_s + WEEK_S)]:
        is_open = [one for one in found if one.is_open(at_s) and one.made_s <= at_s < one.gone_s]
        sound(sum(one.width for one in is_open) <= 64, "too many together")
    return found, jobs


FACTORS: Final = 'model = "x"\n[n1]\nwatts = 1.04\nhalf = 0.01\n[n2]\nwatts = 0.97\nhalf = 0.05\n'


def _factors(path: Path) -> Any:
    found = read_factors(path)
    sound(all(0.5 <= watts <= 2 for watts in found.values()), "no factor")
    return found


MQTT: Final = """\
[mqtt]
broker = "broker.site:8883"
org = "site"
cluster = "one"
ca = "/etc/ssl/certs/ca-certificates.crt"
certificate = "client.pem"
key = "client.key"
user = "nodectl"
password_file = "password"
period_s = 5
queue = 1000
users = true
protocol = "3.1.1"
"""


def _mqtt(path: Path) -> Any:
    found = read_mqtt_settings(path)
    sound(bool(found.broker and found.org and found.cluster), "no topic")
    sound(1 <= found.period_s <= 3600 and found.queue >= 100, "no period")
    return found


INLETS: Final[dict[str, list[Any]]] = {
    "timestamp": [datetime(2022, 1, 1, 0, 0, 20), datetime(2022, 1, 1, 0, 0, 40), datetime(2022, 1, 1, 0, 20)],
    "value": [21.5, 22.0, 24.5],
    "node": ["1", "2", "1"],
}


def _inlets(path: Path) -> Any:
    readings, nodes, left_out = read_inlets(path)
    celsius = readings.inlet_c[~np.isnan(readings.inlet_c)]
    sound(readings.inlet_c.shape[1] == len(nodes) > 0 and left_out >= 0, "no nodes")
    sound(bool((celsius >= LOWEST_C).all() and (celsius <= HIGHEST_C).all()), "no room is so warm")
    return [readings.start_s, nodes, left_out, readings.inlet_c.shape[0], np.nansum(readings.inlet_c).item()]


QUEUE: Final = """\
{"meta": {}, "errors": [], "jobs": [
{"job_id": 17, "job_state": ["RUNNING"], "submit_time": {"set": true, "infinite": false, "number": 1795909975},
"restart_cnt": 1, "nodes": "n[01-02]", "user_name": "ana", "name": "x", "comment": "nodectl=memory", "cluster": "hpc"},
{"job_id": 18, "job_state": "PENDING", "submit_time": 1795909975, "restart_cnt": 0, "nodes": null}
]}"""


def _queue(path: Path) -> Any:
    try:
        jobs, unknown = jobs_on_nodes(foreign_text(path.read_bytes()))
    except (ClusterError, TextError) as error:
        raise ClusterError(f"{path}: {error}") from None
    sound(all(one.nodes and one.node_list for one in jobs), "a job without nodes")
    return [[[one.job, sorted(one.nodes), one.submitted_s, one.restarts, one.user] for one in jobs], unknown]


SENSORS: Final = "Inlet Temp | 04h | ok | 7.1 | 23 degrees C\nFront Panel Temp | 22.0 | degrees C | ok | na | na\n"
REDFISH: Final = """\
{"Temperatures": [
{"Name": "Inlet", "ReadingCelsius": 22, "PhysicalContext": "Intake", "Status": {"State": "Enabled"}},
{"Name": "CPU1", "ReadingCelsius": 55, "PhysicalContext": "CPU"}
]}"""


def _degrees(path: Path) -> Any:
    try:
        found = inlets(foreign_text(path.read_bytes()))
    except (ValueError, TextError) as error:
        raise ClusterError(f"{path}: {str(error)[:200]}") from None
    sound(all(math.isnan(value) or abs(value) <= MOST_C for value in found.values()), "no temperature of anything")
    return [[name, *known([value])] for name, value in found.items()]


def of_tables() -> dict[str, Reader]:
    """By name."""
    trouble = (ClusterError,)
    return {
        "prices": Reader((PRICES, LOCAL), _prices, trouble, ","),
        "outside temperatures": Reader(("from_s,celsius\n0,-3.5\n3600,2\n7200,9\n",), _temperatures, trouble, ","),
        "cooling": Reader(("celsius,watts,pue\n0,0,1.1\n0,9e5,1.2\n30,0,1.3\n30,9e5,1.5\n",), _pue, trouble, ","),
        "GPU pairs": Reader((PAIRS,), _pairs, trouble, ","),
        "GPU jobs": Reader((GPU_JOBS,), _gpu_jobs, trouble, ","),
        "clusters": Reader((CLUSTERS,), _clusters, trouble, "\t"),
        "requests of clusters": Reader((REQUESTS, REQUESTS.partition("\n")[2]), _requests, trouble, " "),
        "failures": Reader((FAILURES,), _failures, trouble, ","),
        "reservations": Reader((RESERVATIONS,), _reservations, trouble, ","),
        "node factors": Reader((FACTORS,), _factors, (NodectlError,)),
        "MQTT settings": Reader((MQTT,), _mqtt, (NodectlError,)),
        "queue of Slurm": Reader((QUEUE,), _queue, trouble),
        "sensors of a BMC": Reader((SENSORS,), _degrees, trouble, "|"),
        "Redfish": Reader((REDFISH,), _degrees, trouble),
        "inlets in Parquet": Reader((packed(INLETS),), _inlets, trouble, damage=Tables(INLETS), ending=".parquet"),
    }
