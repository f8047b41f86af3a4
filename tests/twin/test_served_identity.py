"""Programs cannot tell the served tree from sysfs, nor the emulated CPUs from real ones; where they can, docs/twin.md
says so.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator

import pytest

from tests.twin.foreign import laid, why_not_foreign
from tests.twin.served_node import ServedNode, why_not_served

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)

needs_foreign = pytest.mark.skipif(bool(why_not_foreign()), reason=why_not_foreign())
CPU = "/sys/devices/system/cpu"


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    with ServedNode("genoa-h100") as served:
        yield served


def lines(node: ServedNode, script: str) -> list[str]:
    return node.output("sh", "-c", script).splitlines()


# ---- statfs --------------------------------------------------------------------------------------------------------


def test_every_file_below_sys_says_that_it_is_of_sysfs(node: ServedNode) -> None:
    paths = f"/sys {CPU} {CPU}/online /sys/class/hwmon /sys/kernel /sys/kernel/mm /sys/power/state /sys/kernel/notes"
    assert set(lines(node, f"stat -f -c %T {paths}")) == {"sysfs"}
    assert lines(node, "stat -f -c %T /sys/kernel/debug") == ["debugfs"]  # as systemd mounts it
    assert lines(node, "cd /sys/class; stat -f -c %T ../devices/system/cpu ../kernel/notes") == ["sysfs", "sysfs"]
    assert set(lines(node, "stat -f -c %T /proc /proc/cpuinfo /proc/sys /proc/sys/vm/swappiness")) == {"proc"}


def test_a_copy_of_sysfs_elsewhere_says_so_too(node: ServedNode) -> None:
    node.output("sh", "-c", "mkdir /run/copy && mount --rbind /sys /run/copy")
    try:
        for path in ("", "/devices/system/cpu/online", "/kernel/mm"):
            assert lines(node, f"stat -f -c %T /run/copy{path}") == ["sysfs"]
    finally:
        node.output("umount", "-l", "/run/copy")


def test_fstatfs_agrees_and_other_file_systems_are_unharmed(node: ServedNode) -> None:
    code = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
buffer = (ctypes.c_ulong * 32)()
for path in (sys.argv[1:]):
    fd = os.open(path, os.O_RDONLY)
    libc.fstatfs(fd, buffer)
    print(hex(buffer[0]), end=" ")
    named = (ctypes.c_ulong * 32)()
    libc.statfs(path.encode(), named)
    print(list(named)[:3] == list(buffer)[:3])  # the fourth are free blocks, which others take meanwhile
print(libc.statfs(b"/nowhere", buffer), errno.errorcode[ctypes.get_errno()])
print(libc.fstatfs(99, buffer), errno.errorcode[ctypes.get_errno()])
print(libc.statfs(b"/sys", None), errno.errorcode[ctypes.get_errno()])
"""
    answers = node.python(code, f"{CPU}/online", CPU, "/sys/kernel/notes", "/dev", "/usr").splitlines()
    assert answers[:4] == [*["0x62656572 True"] * 3, "0x1021994 True"]  # SYSFS_MAGIC, TMPFS_MAGIC
    assert answers[4].endswith(" True")
    assert answers[5:] == ["-1 ENOENT", "-1 EBADF", "-1 EFAULT"]


# ---- affinity ------------------------------------------------------------------------------------------------------


def test_a_program_may_use_all_emulated_cpus_and_choose_some(node: ServedNode) -> None:
    assert lines(node, "nproc; taskset -c 300 nproc; taskset -c 7,300-303 sh -c 'nproc; sh -c nproc'") == [
        *("384", "1", "5", "5")
    ]
    chosen = node.output(
        "taskset", "-c", "300,5", "sh", "-c", "taskset -cp $$; grep Cpus_allowed_list /proc/self/status"
    )
    assert re.findall(r":\s*(.*)", chosen) == ["5,300", "5,300"]
    assert "failed to set" in node.run("taskset", "-c", "384", "true").stderr


AFFINITY = """
import ctypes, errno, json, os, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
getcpu, getaffinity, rseq = (309, 204, 334) if os.uname().machine == "x86_64" else (168, 123, 293)
def where():
    cpu, memory = ctypes.c_uint(), ctypes.c_uint()
    assert libc.syscall(getcpu, ctypes.byref(cpu), ctypes.byref(memory), None) == 0
    return cpu.value, memory.value, libc.sched_getcpu()
def refused(call):
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno]
early = subprocess.Popen(["sleep", "60"])
gate, found = threading.Event(), []
thread = threading.Thread(target=lambda: (gate.wait(), found.append(sorted(os.sched_getaffinity(0)))))
thread.start()
os.sched_setaffinity(0, {300})
late = subprocess.Popen(["sleep", "60"])
gate.set(); thread.join()
answer = {
    "own": sorted(os.sched_getaffinity(0)), "at": where(),
    "early child": len(os.sched_getaffinity(early.pid)), "late child": sorted(os.sched_getaffinity(late.pid)),
    "early thread": len(found[0]),
}
os.sched_setaffinity(late.pid, {1, 2})
answer["moved child"] = sorted(os.sched_getaffinity(late.pid))
early.kill(); late.kill(); early.wait(); late.wait()
buffer = (ctypes.c_ulong * 64)()
answer["sizes"] = [libc.syscall(getaffinity, 0, size, buffer) for size in (512, 48, 47, 40)]
answer["refused"] = [
    refused(lambda: os.sched_setaffinity(0, {384})), refused(lambda: os.sched_getaffinity(early.pid)),
    refused(lambda: (os.setuid(65534), os.sched_setaffinity(1, {0}))),
]
answer["rseq"] = libc.syscall(rseq, 0, 0, 0, 0), errno.errorcode[ctypes.get_errno()]
print(json.dumps(answer))
"""


def test_affinity_is_inherited_and_refused_as_by_the_kernel(node: ServedNode) -> None:
    """Sizes: the kernel copies as many bytes as its CPUs need, and refuses a buffer that is too small or odd."""
    assert json.loads(node.python(AFFINITY)) == {
        "own": [300],
        "at": [300, 1, 300],
        "early child": 384,
        "late child": [300],
        "early thread": 384,
        "moved child": [1, 2],
        "sizes": [48, 48, -1, -1],
        "refused": ["EINVAL", "ESRCH", "EPERM"],
        "rseq": [-1, "ENOSYS"],
    }


@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (6, 11), reason="translating its numbers needs Linux 6.11"
)
def test_a_program_in_a_pid_namespace_names_tasks_by_its_own_numbers(node: ServedNode) -> None:
    script = "taskset -cp 9 $$ >/dev/null; taskset -cp 1; taskset -c 4 sleep 60 & sleep 0.2; taskset -cp $!; kill $!"
    answer = node.output("unshare", "-p", "-f", "--mount-proc", "sh", "-c", script)
    assert re.findall(r"list: (.*)", answer) == ["9", "4"]


def test_the_status_file_and_the_cpuset_have_the_masks_of_the_emulated_node(node: ServedNode) -> None:
    text = node.output("cat", "/proc/self/status")
    full = ",".join(["ffffffff"] * 12)
    for row in (f"Cpus_allowed:\t{full}", "Cpus_allowed_list:\t0-383", "Mems_allowed:\t3", "Mems_allowed_list:\t0-1"):
        assert row in text.splitlines()
    assert text.startswith("Name:\tcat\n") and "\nvoluntary_ctxt_switches:" in text
    found = lines(node, "cat /sys/fs/cgroup/cpuset/cpuset.cpus 2>/dev/null || echo 0-383")
    assert found == ["0-383"]
    assert set(lines(node, "cat /sys/bus/pci/devices/*/local_cpulist 2>/dev/null; true")) <= {"0-383"}


# ---- programs ------------------------------------------------------------------------------------------------------


def test_psutil_counts_and_chooses_emulated_cpus(node: ServedNode) -> None:
    code = """
import json, psutil
own = psutil.Process()
all_cpus = len(own.cpu_affinity())
own.cpu_affinity([300])
one = own.cpu_affinity()
own.cpu_affinity([])
print(json.dumps([psutil.cpu_count(), psutil.cpu_count(logical=False), all_cpus, one, len(own.cpu_affinity())]))
"""
    assert json.loads(node.python(code)) == [384, 192, 384, [300], 384]


def test_cpupower_lists_and_disables_idle_states(node: ServedNode) -> None:
    if shutil.which("cpupower") is None:
        pytest.skip("cpupower is missing: install linux-cpupower")
    assert "Available idle states: POLL C1 C2" in node.output("cpupower", "idle-info")
    node.output("cpupower", "-c", "3", "idle-set", "-d", "2")
    assert "C2 (DISABLED)" in node.output("cpupower", "-c", "3", "idle-info")
    node.output("cpupower", "-c", "3", "idle-set", "-e", "2")
    assert node.read(f"{CPU}/cpu3/cpuidle/state2/disable") == "0"


@needs_foreign
def test_hwloc_finds_the_topology_and_binds_to_it(node: ServedNode) -> None:
    script = "lstopo-no-graphics --of console --no-io --no-icaches -p; hwloc-bind core:100 -- sh -c 'taskset -cp $$'"
    *tree, bound = laid(node, script).splitlines()
    assert tree[:7] == [
        *("Machine (1512GB total)", "  Package P#0", "    NUMANode P#0 (756GB)", "    L3 P#0 (32MB)"),
        *("      L2 P#0 (1024KB) + L1d P#0 (32KB) + Core P#0", "        PU P#0", "        PU P#192"),
    ]
    counts = [sum(f" {name} P#" in f" {line.strip()}" for line in tree) for name in ("Package", "NUMANode", "L3", "PU")]
    assert counts == [2, 2, 24, 384]
    assert bound.endswith(" 100,292")


@needs_foreign
def test_numactl_shows_the_nodes_and_binds_to_their_cpus(node: ServedNode) -> None:
    answer = laid(node, "numactl --hardware; numactl --show; numactl -C 300 nproc; numactl -N 1 nproc; numastat")
    assert "available: 2 nodes (0-1)" in answer
    assert re.findall(r"node (\d) size: (\d+) MB", answer) == [("0", "774144"), ("1", "774144")]
    assert re.findall(r"^ *\d: +(\d+) +(\d+)", answer, re.MULTILINE) == [("10", "21"), ("21", "10")]
    assert "membind: 0 1" in answer
    assert re.findall(r"^(\d+)$", answer, re.MULTILINE) == ["1", "192"]
    assert re.search(r"numa_hit +0 +0", answer)


@needs_foreign
def test_sensors_lists_every_chip(node: ServedNode) -> None:
    answer = laid(node, "sensors 2>&1")
    assert re.findall(r"^[\w-]+-[\w-]+$", answer, re.MULTILINE) == [
        *("k10temp-pci-00c3", "k10temp-pci-00cb", "spd5118-i2c-0-50", "spd5118-i2c-1-50", "power_meter-acpi-0")
    ]
    assert len(re.findall(r"Tctl: +\+\d\d\.\d.?C +\(crit = \+100\.0.?C\)", answer)) == 2
    assert "Can't" not in answer


@needs_foreign
def test_udevadm_accepts_the_tree_as_sysfs(node: ServedNode) -> None:
    answer = laid(node, f"udevadm info {CPU}/cpu3; udevadm info -a -p {CPU}/cpu3; udevadm info /sys/class/hwmon/hwmon0")
    for row in (
        "P: /devices/system/cpu/cpu3",
        "U: cpu",
        "V: processor",
        '    ATTR{cache/index3/size}=="32768K"',
        "U: hwmon",
    ):
        assert row in answer.splitlines()


@needs_foreign
def test_s_tui_reads_clocks_and_temperatures(node: ServedNode) -> None:
    answer = laid(node, "unset PYTHONPATH; /usr/bin/python3 /usr/bin/s-tui -j")
    found = json.loads(answer[answer.index("{") :])
    assert float(found["Frequency"]["Core 191"]) == pytest.approx(3700, abs=1)  # psutil lists a clock per policy
    assert found["Temp"].keys() == {"Tctl,0", "Tctl,1", "Spd5118,0", "Spd5118,1"}
