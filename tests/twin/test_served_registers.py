"""Programs that read and write model-specific registers, on a served twin: msr-tools, turbostat, likwid.

turbostat and likwid choose registers by the CPUID instruction, which is the host's. qemu-user gives them the emulated
processor's; all their system calls are made as without it. The machines here have as many CPUs as any host, since such
programs move to each CPU in turn.
"""

from __future__ import annotations

import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.twin.served_node import ROOT, ServedNode, why_not_served
from tests.waiting import PATIENCE_S, within
from twin.machine import MACHINES

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)

FOREIGN = ROOT / "build" / "foreign" / "root"
CPUS = 2
ZONE = "/sys/class/powercap/intel-rapl:0"
LIMIT = f"{ZONE}/constraint_0_power_limit_uw"

LAY = f"""
laid=$(mktemp -d /run/laid-XXXXXX); mount -t tmpfs none $laid; mkdir $laid/upper $laid/work
mount -t overlay none -o lowerdir={FOREIGN}/usr:/usr,upperdir=$laid/upper,workdir=$laid/work /usr
unset LD_LIBRARY_PATH
"""


def small(folder: Path, machine: str) -> str:
    """A machine file of one socket with two cores, else as the shipped one."""
    text = (MACHINES / f"{machine}.toml").read_text()
    changed = {"sockets": "1", "cores_per_socket": f"{CPUS}", "threads_per_core": "1", "domain": '"core"'}
    for key, value in changed.items():
        text = re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
    text = re.sub(r"(level = 3, .*cores = )\d+", rf"\g<1>{CPUS}", text)
    path = folder / f"{machine}.toml"
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def skylake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    machine = small(tmp_path_factory.mktemp("machine"), "skylake-6146")
    with ServedNode(machine, "--workload", "hpl") as node:
        yield node


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    """At a clock that its power limit does not lower, so that its power is steady."""
    machine = small(tmp_path_factory.mktemp("machine"), "client")
    with ServedNode(machine, "--workload", "hpl") as node:
        node.output("sh", "-c", "echo 1500000 | tee /sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq")
        yield node


def needs(program: str) -> str:
    """The path of an unpacked program."""
    found = next((path for folder in ("bin", "sbin") if (path := FOREIGN / "usr" / folder / program).exists()), None)
    if found is None:
        pytest.skip(f"{program} is missing: unpack it with scripts/foreign.sh")
    return str(found)


def watts(node: ServedNode, seconds: float = 0.25) -> float:
    """Mean power of package 0 by powercap."""
    code = (
        "import sys, time\n"
        "def now(): return time.monotonic(), int(open(sys.argv[1]).read())\n"
        "began_s, first_uj = now(); time.sleep(float(sys.argv[2])); ended_s, last_uj = now()\n"
        "print((last_uj - first_uj) * 1e-6 / (ended_s - began_s))"
    )
    return float(node.python(code, f"{ZONE}/energy_uj", str(seconds)))


def once_within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether a measurement is right once: on a busy machine the emulated node may be a while behind, at its begin or
    at its end."""
    held: list[bool] = []

    def has_held() -> bool:
        if not any(held):
            held.append(holds())
        return any(held)

    return within(seconds, has_held)


# ---- the files -----------------------------------------------------------------------------------------------------


def test_a_register_file_is_the_character_device_of_its_cpu(skylake: ServedNode) -> None:
    look = "import os, sys; s = os.stat(sys.argv[1]); print(s.st_mode, os.major(s.st_rdev), os.minor(s.st_rdev))"
    for cpu in range(CPUS):
        mode, major, minor = map(int, skylake.python(look, f"/dev/cpu/{cpu}/msr").split())
        assert stat.S_ISCHR(mode) and stat.S_IMODE(mode) == 0o600
        assert (major, minor) == (202, cpu)
    found = skylake.output("find", "/dev/cpu", "-type", "c").split()
    assert sorted(found) == [f"/dev/cpu/{cpu}/msr" for cpu in range(CPUS)]
    skylake.output("test", "-c", "/dev/cpu/1/msr")
    assert skylake.output("stat", "-c", "%F %t:%T", "/dev/cpu/1/msr").strip() == "character special file ca:1"
    assert skylake.run("test", "-e", f"/dev/cpu/{CPUS}/msr").returncode == 1


def test_a_stat_between_reads_and_by_another_thread_disturbs_neither(skylake: ServedNode) -> None:
    code = """
import os, stat, threading
wrong = []
def read():
    fd = os.open("/dev/cpu/0/msr", os.O_RDONLY)
    if os.pread(fd, 8, 0x606) != (0xA0E03).to_bytes(8, "little") or not stat.S_ISREG(os.fstat(fd).st_mode):
        wrong.append("read")
    os.close(fd)
def look():
    if not stat.S_ISCHR(os.stat("/dev/cpu/0/msr").st_mode):
        wrong.append("stat")
def repeat(each):
    try:
        for _ in range(60):
            each()
    except OSError as error:
        wrong.append(str(error))
threads = [threading.Thread(target=repeat, args=(each,)) for each in (read, look, read, look)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(wrong)
"""
    assert skylake.python(code).strip() == "[]"


def test_reads_are_of_whole_registers_and_unknown_ones_give_eio(skylake: ServedNode) -> None:
    code = """
import errno, os
fd = os.open("/dev/cpu/1/msr", os.O_RDWR)
print(os.pread(fd, 16, 0xCE).hex())
for attempt in (lambda: os.pread(fd, 4, 0xCE), lambda: os.pread(fd, 8, 0x12345), lambda: os.pwrite(fd, bytes(8), 0xCE)):
    try:
        attempt()
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    twice, *errors = skylake.python(code).split()
    assert twice[:16] == twice[16:] and errors == ["EINVAL", "EIO", "EIO"]


def test_only_root_opens_registers(skylake: ServedNode) -> None:
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    assert "Permission denied" in skylake.run(*user, "head", "-c8", "/dev/cpu/0/msr").stderr
    skylake.output("chmod", "a+r", "/dev/cpu/1/msr")
    assert "Operation not permitted" in skylake.run(*user, "head", "-c8", "/dev/cpu/1/msr").stderr  # CAP_SYS_RAWIO
    skylake.output("chmod", "600", "/dev/cpu/1/msr")


def test_a_limit_of_descriptors_above_the_hard_one_is_accepted(skylake: ServedNode) -> None:
    """As by a root that has CAP_SYS_RESOURCE, which containers lack; then it is the highest that this host gives."""
    code = (
        "import resource as r; most = r.getrlimit(r.RLIMIT_NOFILE)[1]\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (most + 1, most + 1)); now = r.getrlimit(r.RLIMIT_NOFILE)\n"
        "print(now[0] >= most, now[0] == now[1])\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (1000, now[1])); print(r.getrlimit(r.RLIMIT_NOFILE)[0])"
    )
    assert skylake.python(code).split() == ["True", "True", "1000"]


# ---- msr-tools -----------------------------------------------------------------------------------------------------


def test_rdmsr_reads_what_sysfs_shows(skylake: ServedNode) -> None:
    rdmsr = needs("rdmsr")
    assert skylake.output(rdmsr, "-f", "15:8", "-d", "0xce").strip() == "32"  # 3.2 GHz
    assert int(skylake.output(rdmsr, "-f", "14:0", "-d", "0x610")) * 125_000 == int(skylake.read(LIMIT))
    first_uj = int(skylake.read(f"{ZONE}/energy_uj"))
    energy_uj = int(skylake.output(rdmsr, "-d", "0x611")) * 61.035
    last_uj = int(skylake.read(f"{ZONE}/energy_uj"))
    assert first_uj - 100 <= energy_uj <= last_uj + 100
    assert len(skylake.output(rdmsr, "-a", "0x10").split()) == CPUS


def test_rdmsr_says_which_register_the_machine_lacks(skylake: ServedNode) -> None:
    done = skylake.run(needs("rdmsr"), "0xc0010299")
    assert done.returncode == 4 and "cannot read MSR 0xc0010299" in done.stderr


def test_wrmsr_caps_the_package_and_powercap_shows_it(skylake: ServedNode) -> None:
    rdmsr, wrmsr = needs("rdmsr"), needs("wrmsr")
    free = int(skylake.output(rdmsr, "-d", "0x610"))
    cap_w = round(watts(skylake) * 0.8)
    try:
        skylake.output(wrmsr, "0x610", str(free & ~0x7FFF | cap_w * 8))
        assert skylake.read(LIMIT) == str(cap_w * 1_000_000)
        assert once_within(PATIENCE_S, lambda: watts(skylake) < 1.03 * cap_w)
    finally:
        skylake.output(wrmsr, "0x610", str(free))
    assert once_within(PATIENCE_S, lambda: watts(skylake) > 1.1 * cap_w)


def test_cpus_take_their_own_clock_from_wrmsr(skylake: ServedNode) -> None:
    clock = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
    request = skylake.output(needs("rdmsr"), "-p", "1", "-d", "0x774").strip()
    try:
        skylake.output(needs("wrmsr"), "-p", "1", "0x774", str(12 | 16 << 8 | 128 << 24))
        assert within(PATIENCE_S, lambda: skylake.read(clock.format(1)) == "1600000")
        assert within(PATIENCE_S, lambda: skylake.read(clock.format(0)) == "3200000")
    finally:
        skylake.output(needs("wrmsr"), "-p", "1", "0x774", request)


# ---- turbostat -----------------------------------------------------------------------------------------------------

TURBOSTAT = ("--num_iterations", "1", "--interval", "0.5")


def test_turbostat_starts_on_the_hosts_cpuid_or_names_a_register_that_the_emulated_cpu_has_not(
    skylake: ServedNode,
) -> None:
    if shutil.which("turbostat") is None:
        pytest.skip("turbostat is missing: install linux-cpupower")
    done = skylake.run("turbostat", "--quiet", *TURBOSTAT)
    if done.returncode == 0:
        assert "TSC_MHz" in done.stdout and len(done.stdout.splitlines()) == 2 + CPUS
    else:  # on a host whose CPUID is a desktop's: it has energy of the cores (0x639), a server has not
        found = re.fullmatch(
            r"turbostat: cpu0: msr offset (0x[0-9a-f]+) read failed: Input/output error", done.stderr.strip()
        )
        assert found, done.stderr
        assert skylake.run(needs("rdmsr"), "-p", "0", found[1]).returncode != 0


def test_turbostat_decodes_limits_and_measures_the_models_power(skylake: ServedNode) -> None:
    qemu, turbostat = needs("qemu-x86_64"), shutil.which("turbostat")
    if turbostat is None:
        pytest.skip("turbostat is missing: install linux-cpupower")
    command = (qemu, "-cpu", "Skylake-Server-v4", turbostat, *TURBOSTAT)

    def is_right() -> bool:
        done = skylake.run("env", "-u", "LD_LIBRARY_PATH", *command)
        assert done.returncode == 0, done.stderr
        assert "12 * 100.0 = 1200.0 MHz max efficiency frequency" in done.stderr
        assert "32 * 100.0 = 3200.0 MHz base frequency" in done.stderr
        assert "PKG Limit #1: ENabled (165.000 Watts, 1.000000 sec" in done.stderr
        assert "(165 W TDP" in done.stderr
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        row = dict(zip(rows[0], rows[1], strict=False))
        assert row["UncMHz"] == "2400"
        return float(row["PkgWatt"]) == pytest.approx(watts(skylake), rel=0.02) and float(row["RAMWatt"]) > 1

    assert once_within(PATIENCE_S, is_right)


# ---- likwid --------------------------------------------------------------------------------------------------------


def likwid(node: ServedNode, program: str, *arguments: str) -> str:
    """Output of a program of likwid for Tiger Lake."""
    if node.run("test", "-e", "/sys/devices/system/node/node0/meminfo").returncode:
        pytest.skip("likwid ends without the memory of each node in sysfs")
    qemu = f"{needs('qemu-x86_64')} -cpu Skylake-Client,model=140,stepping=1"
    needs(program)
    line = " ".join(("exec", qemu, "/usr/bin/lua5.3", f"/usr/bin/{program}", *arguments))
    return node.output("unshare", "-m", "timeout", f"{PATIENCE_S}", "sh", "-ec", LAY + line)


def test_likwid_topology_shows_the_emulated_processor(client: ServedNode) -> None:
    text = likwid(client, "likwid-topology")
    assert "Intel Tigerlake processor" in text and "i7-1165G7" in text
    shown = dict(re.findall(r"(?m)^(Sockets|Cores per socket|Threads per core):\s+(\d+)$", text))
    assert shown == {"Sockets": "1", "Cores per socket": f"{CPUS}", "Threads per core": "1"}


def test_likwid_powermeter_measures_the_models_power(client: ServedNode) -> None:
    def is_right() -> bool:
        text = likwid(client, "likwid-powermeter", "-M", "0", "-s", "500ms")
        shown = dict(re.findall(r"Domain (\w+):\nEnergy consumed: \S+ Joules\nPower consumed: (\S+) Watt", text))
        return float(shown["PKG"]) == pytest.approx(watts(client), rel=0.02)

    assert once_within(PATIENCE_S, is_right)


def test_likwid_powermeter_names_the_range_of_clocks(client: ServedNode) -> None:
    text = likwid(client, "likwid-powermeter", "-M", "0", "-i")
    for line in ("Base clock:\t2800.00 MHz", "Minimal clock:\t400.00 MHz", "C1 4700.00 MHz", "Power: 28 Watt"):
        assert line in text
    assert "Maximal Uncore frequency: 3600 MHz" in text


def test_python_reads_registers_too(client: ServedNode) -> None:
    code = "import os; fd = os.open('/dev/cpu/0/msr', 0); print(int.from_bytes(os.pread(fd, 8, 0x1A2), 'little') >> 16)"
    assert client.output(sys.executable, "-c", code).strip() == "100"
