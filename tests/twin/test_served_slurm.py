"""Slurm on a served twin: its daemons count the emulated CPUs, and ``srun`` binds to them and sets their clocks.

None of it is installed (tests/twin/foreign.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.twin.foreign import laid, why_not_foreign
from tests.twin.host import unchanged_host
from tests.twin.served_node import ServedNode, why_not_served

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)

if why_not_foreign():
    pytest.skip(why_not_foreign(), allow_module_level=True)

CPUS, SHARING = 16, 8  # the CPUs of a socket share a clock
GOVERNORS, CLOCKS = (
    " ".join(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_{file}" for cpu in range(CPUS))
    for file in ("governor", "setspeed")
)

SLURM = """
slurm=/run/slurm munge=/run/slurm/munge node=$(hostname -s)
mkdir -p $slurm/state $slurm/spool $munge
ln -s slurmstepd-wlm /usr/sbin/slurmstepd  # as Debian's package does when it is installed
head -c 1024 /dev/urandom >$munge/key; chmod 400 $munge/key
munged --force --key-file=$munge/key --socket=$munge/socket --pid-file=$munge/pid --log-file=$munge/log \\
    --seed-file=$munge/seed 2>/dev/null
free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
cat >$slurm/slurm.conf <<END
ClusterName=twin
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$(free)
SlurmdPort=$(free)
AuthType=auth/munge
AuthInfo=socket=$munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool
SlurmctldPidFile=$slurm/slurmctld.pid
SlurmdPidFile=$slurm/slurmd.pid
SlurmctldLogFile=$slurm/slurmctld.log
SlurmdLogFile=$slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
CpuFreqGovernors=OnDemand,Performance,PowerSave,UserSpace
END
seen=$(slurmd-wlm -C | grep -o 'CPUs=.*ThreadsPerCore=[0-9]*')
echo "NodeName=$node NodeAddr=127.0.0.1 $seen" >>$slurm/slurm.conf
echo "PartitionName=all Nodes=$node Default=YES" >>$slurm/slurm.conf
export SLURM_CONF=$slurm/slurm.conf
slurmctld-wlm 2>/dev/null; slurmd-wlm 2>/dev/null
until sinfo -h -o %T 2>/dev/null | grep -q idle; do sleep 0.1; done
"""


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    with (
        unchanged_host("munged", "slurmctld", "slurmd", "slurmstepd", "srun"),
        ServedNode("curie", "--workload", "hpl") as served,
    ):
        yield served


def job(node: ServedNode, *commands: str) -> list[str]:
    """Lines that commands print next to a running Slurm."""
    end = "kill $(cat $slurm/slurmd.pid $slurm/slurmctld.pid $munge/pid)"
    return laid(node, "\n".join((SLURM, *commands, end))).splitlines()


def test_slurm_counts_the_emulated_sockets_and_srun_binds_to_their_cpus(node: ServedNode) -> None:
    downwards = ",".join(map(str, reversed(range(CPUS))))
    counted, *bound = job(
        node,
        "sinfo -h -o '%c %z'",
        f"srun -n {CPUS} --cpu-bind=map_cpu:{downwards} sh -c 'echo $SLURM_PROCID $(taskset -cp $$)'",
    )
    assert counted == "16 2:8:1"  # CPUs, sockets : cores : threads
    assert {(int(line.split()[0]), int(line.split()[-1])) for line in bound} == {
        (task, CPUS - 1 - task) for task in range(CPUS)
    }


def test_srun_sets_the_clock_of_the_jobs_cpus_until_it_ends(node: ServedNode) -> None:
    current = CLOCKS.split()[0].replace("setspeed", "cur_freq")
    governors, clocks, after = job(
        node,
        f"srun -n 1 --cpu-freq=1800000 sh -c 'until grep -qx 1800000 {current}; do sleep 0.1; done;"
        f" cat {GOVERNORS} | xargs; cat {CLOCKS} | xargs'",
        f"cat {GOVERNORS} | xargs",
    )
    assert governors.split() == ["userspace"] * SHARING + ["ondemand"] * (CPUS - SHARING)
    assert clocks.split() == ["1800000"] * SHARING + ["<unsupported>"] * (CPUS - SHARING)
    assert after.split() == ["ondemand"] * CPUS
