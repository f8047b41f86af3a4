"""No escape path leads from the served twin to the host: each is tried as programs try it, then the host is checked.

Stand-ins on the host take the part of what a real node has and this machine may lack: device nodes, daemons' sockets.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.twin.host import unchanged_host
from tests.twin.served_node import ROOT, ServedNode, environment, twin_command, why_not_served

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)

from twin.serve import mirror, namespace

KNOB = "devices/system/cpu/cpu0/cpufreq/scaling_max_freq"
TOP_KHZ = "2700000"  # of curie, and of no host that has 16 CPUs
SYSCTL = "/proc/sys/vm/stat_interval"

DEVICES = ("cpu/0/msr", "ipmi0", "isst_interface", "mem", "nvidia0", "nvidiactl", "rfkill", "sda", "watchdog0")
SOCKETS = (
    *("dbus/system_bus_socket", "docker.sock", "containerd/containerd.sock", "nvidia-persistenced/socket"),
    *("systemd/private", "systemd/notify", "podman/podman.sock", "user/0/bus"),
)


@pytest.fixture(scope="module")
def stand_ins() -> Iterator[None]:
    """Device nodes and listening sockets on the host, where it has none of the name. Any device does: they are null."""
    made: list[Path] = []
    folders: list[Path] = []
    listeners = []
    try:
        for path in (*(Path("/dev") / name for name in DEVICES), *(Path("/run") / name for name in SOCKETS)):
            for folder in reversed(path.parents):
                if not folder.exists():
                    folder.mkdir()
                    folders.append(folder)
            if path.exists():
                continue
            if path.is_relative_to("/dev"):
                os.mknod(path, 0o020600, os.makedev(1, 3))
            else:
                listeners.append(socket.socket(socket.AF_UNIX))
                listeners[-1].bind(str(path))
                listeners[-1].listen()
            made.append(path)
        yield
    finally:
        for listener in listeners:
            listener.close()
        for path in made:
            path.unlink()
        for folder in reversed(folders):
            folder.rmdir()


@pytest.fixture(scope="module")
def escapes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of the program that makes the system calls which Python does not offer."""
    if shutil.which("cc") is None:
        pytest.skip("cc is missing: install gcc")
    program = tmp_path_factory.mktemp("escapes") / "escapes"
    source = Path(__file__).with_name("escapes.c")
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-o", program, source], check=True)
    return str(program)


@pytest.fixture(scope="module")
def node(stand_ins: None) -> Iterator[ServedNode]:
    with unchanged_host(), ServedNode("curie") as served:
        yield served


def shell(node: ServedNode, script: str) -> str:
    """Output of a script in a mount namespace of its own, where ``$at`` is an empty directory."""
    prepare = "at=$(mktemp -d /run/at-XXXXXX)\nset -e\n"
    return node.output("unshare", "-m", "sh", "-c", prepare + script).strip()


def failing(node: ServedNode, *command: str) -> str:
    """Complaint of a program that must fail."""
    done = node.run(*command)
    assert done.returncode != 0, done.stdout
    return done.stderr


# ---- mounts --------------------------------------------------------------------------------------------------------

NEW_MOUNTS = {
    "mount": "mount -t {type} none $at",
    "mount by descriptor": "exec 7<$at; mount --no-canonicalize -i -t {type} none /proc/self/fd/7",
    "fsopen": "{escapes} fsmount {type} $at",
    "in a chroot": (
        "mkdir $at/x; mount --rbind / $at/x; chroot $at/x mount -t {type} none $at; mount --move $at/x$at $at"
    ),
    "after unmounting": "umount -l /sys; umount -l /dev; mount -t {type} none $at",
    "in a network namespace": "unshare -n mount -t {type} none $at",
}


@pytest.mark.parametrize("way", NEW_MOUNTS)
def test_a_new_sysfs_shows_the_twins_clocks_however_it_is_mounted(node: ServedNode, escapes: str, way: str) -> None:
    made = NEW_MOUNTS[way].format(type="sysfs", escapes=escapes)
    assert shell(node, f"{made} >/dev/null; cat $at/{KNOB}; grep -c ' sysfs ' /proc/mounts").split()[0] == TOP_KHZ


@pytest.mark.parametrize("way", NEW_MOUNTS)
def test_a_new_procfs_shows_the_twins_processors_however_it_is_mounted(
    node: ServedNode, escapes: str, way: str
) -> None:
    made = NEW_MOUNTS[way].format(type="proc", escapes=escapes)
    assert shell(node, f"{made} >/dev/null; grep -c ^processor $at/cpuinfo") == "16"


def test_in_a_user_namespace_too_a_new_sysfs_shows_the_twins_clocks(node: ServedNode) -> None:
    assert shell(node, f"unshare -Urm sh -c 'mount -t sysfs none $0; cat $0/{KNOB}' $at") == TOP_KHZ


def test_a_new_devtmpfs_shows_the_runs_devices(node: ServedNode, escapes: str) -> None:
    for way in ("mount", "fsopen"):
        made = NEW_MOUNTS[way].format(type="devtmpfs", escapes=escapes)
        assert shell(node, f"{made} >/dev/null; ls $at") == shell(node, "ls /dev")


def test_what_is_mounted_again_is_unmounted_as_one_thing(node: ServedNode) -> None:
    for kind in ("sysfs", "proc"):
        assert shell(node, f"mount -t {kind} none $at; umount $at; ls $at; grep -c $at /proc/mounts || true") == "0"


def test_a_lazy_unmount_of_a_new_sysfs_leaves_nothing_below(node: ServedNode) -> None:
    assert shell(node, "mount -t sysfs none $at; umount -l $at; grep -c $at /proc/mounts || true") == "0"


def test_a_new_sysfs_can_be_read_only(node: ServedNode) -> None:
    script = f"mount -t sysfs -o ro none $at; echo 1500000 >$at/{KNOB} || cat $at/{KNOB}"
    assert shell(node, script) == TOP_KHZ


def test_a_users_mount_is_refused_as_ever(node: ServedNode) -> None:
    code = (
        "import ctypes, os; os.setuid(65534); c = ctypes.CDLL(None, use_errno=True)\n"
        "for kind in (b'sysfs', b'proc', b'tmpfs'): c.mount(b'x', b'/mnt', kind, 0, None); print(ctypes.get_errno())"
    )
    assert set(node.python(code).split()) == {str(errno.EPERM)}


def test_an_unmount_reveals_nothing(node: ServedNode) -> None:
    for point in ("/sys", "/proc"):
        assert shell(node, f"umount -l {point}; ls {point}; umount -l {point} 2>/dev/null || ls {point}") == ""
    assert not {f"/dev/{name}" for name in DEVICES} & set(shell(node, "umount -l /dev; find /dev").split())
    for point in ("/sys/devices/system/cpu", "/proc/cpuinfo", "/proc/sys"):
        assert "not mounted" in failing(node, "unshare", "-m", "umount", point)
    assert "busy" in failing(node, "unshare", "-m", "umount", "-l", "/run")
    assert "busy" in failing(node, "unshare", "-m", "umount", "/sys")


def test_control_file_systems_are_refused_and_stay_read_only(node: ServedNode, escapes: str) -> None:
    for kind in ("debugfs", "tracefs", "configfs", "resctrl"):
        assert "permission denied" in failing(node, "unshare", "-m", "mount", "-t", kind, "none", "/mnt")
        assert node.output(escapes, "fsmount", kind, "/mnt").strip() == str(errno.EPERM)
    assert node.output(escapes, "writable", "/", "all").strip() == str(errno.EPERM)


def test_the_launcher_and_the_syscall_server_know_the_same_control_file_systems() -> None:
    source = (ROOT / "twin" / "csrc" / "serve_trees.c").read_text()
    table = source.partition("} controls[] = {")[2].partition("};")[0]
    assert set(re.findall(r'\{"(\w+)"', table)) == set(namespace.CONTROLS)


def test_mounts_that_lead_nowhere_are_the_kernels_own(node: ServedNode, escapes: str) -> None:
    assert (
        shell(node, f"{escapes} fsmount tmpfs $at; umount $at; mount -t tmpfs none $at; touch $at/x; ls $at") == "ok\nx"
    )
    assert shell(node, "mount --bind /sys $at; umount $at; mount --bind /usr $at; umount $at; ls $at") == ""


BINDS = {
    "mount": "mount --bind {source} $at",
    "from where one stands": "cd {source}; mount --bind . $at; cd /",
    "open_tree": "{escapes} bind {source} $at >/dev/null",
}


@pytest.mark.parametrize("way", BINDS)
def test_a_bind_of_sys_or_proc_shows_the_twins_files_and_is_unmounted_as_one_thing(
    node: ServedNode, escapes: str, way: str
) -> None:
    """So a chroot is prepared: without --rbind, and what lies below the twin's files must not come to light."""
    bind = BINDS[way].format(source="/sys", escapes=escapes)
    assert shell(node, f"{bind}; cat $at/{KNOB}; umount $at; ls $at") == TOP_KHZ
    bind, laptop = BINDS[way].format(source="/proc", escapes=escapes), "sys/vm/laptop_mode"
    host = Path("/proc", laptop).read_text()
    assert shell(node, f"{bind}; echo 9 >$at/{laptop}; grep -c ^proc $at/cpuinfo; umount $at; ls $at") == "16"
    assert Path("/proc", laptop).read_text() == host
    assert node.read(f"/proc/{laptop}") == "9"


def test_the_twins_own_mounts_stay_in_their_places(node: ServedNode, escapes: str) -> None:
    for point in ("/proc/sys", "/sys/devices/system/cpu"):
        moved = f"mkdir -p /run/moved && mount --move {point} /run/moved"
        assert "mount" in failing(node, "unshare", "-m", "sh", "-c", moved)
        assert shell(node, f"{escapes} move {point} $at") == str(errno.EINVAL)
    assert (
        shell(node, f"mkdir $at/a $at/b; mount -t tmpfs none $at/a; {escapes} move $at/a $at/b; umount $at/b") == "ok"
    )


def test_what_is_bound_with_all_mounts_is_unmounted_with_all_mounts(node: ServedNode) -> None:
    for source in ("/sys", "/proc", "/run"):
        script = f"mount --rbind {source} $at; umount -R $at; grep -c $at /proc/mounts || ls $at"
        assert shell(node, script) == "0"


def test_a_bind_of_a_directory_of_run_is_unmounted(node: ServedNode) -> None:
    assert shell(node, "mkdir $at/a $at/b; mount --bind $at/a $at/b; umount $at/b; ls $at") == "a\nb"


IN_A_DEAD_DIRECTORY = """
import ctypes, mfusepy, os, signal, stat, time
class Empty(mfusepy.Operations):
    use_ns = True
    def getattr(self, path, fh=None):
        return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
kernel = ctypes.CDLL(None, use_errno=True)
assert kernel.unshare(0x20000) == 0 and kernel.mount(b"none", b"/", None, 0x44000, None) == 0
assert kernel.umount2(b"/sys", 2) == 0
os.mkdir("/run/dead")
daemon = os.fork()
if daemon == 0:
    mfusepy.FUSE(Empty(), "/run/dead", foreground=True, attr_timeout=0, entry_timeout=0)
while not os.path.ismount("/run/dead"):
    time.sleep(0.01)
os.chdir("/run/dead")
os.kill(daemon, signal.SIGKILL)
os.waitpid(daemon, 0)
for _ in range(16):
    assert kernel.umount2(b"x", 0) == -1
    print(ctypes.get_errno())
"""


def test_a_caller_in_a_dead_file_system_does_not_change_what_the_next_one_gets(node: ServedNode) -> None:
    assert set(node.python(IN_A_DEAD_DIRECTORY).split()) == {str(errno.ENOTCONN)}
    for _ in range(4):
        assert shell(node, f"mount -t sysfs none $at; cat $at/{KNOB}") == TOP_KHZ


def test_pivot_root_leads_to_a_root_with_the_twins_files(node: ServedNode) -> None:
    script = (
        "mount -t tmpfs none $at; mkdir $at/bin $at/lib $at/lib64 $at/usr $at/sys $at/proc $at/old\n"
        "for each in /bin /lib /lib64 /usr; do [ -d $each ] && mount --rbind $each $at$each; done\n"
        f"cd $at; pivot_root . old; mount -t proc none /proc; umount -l /old; mount -t sysfs none /sys; cat /sys/{KNOB}"
    )
    assert shell(node, script) == TOP_KHZ


# ---- processes and their namespaces --------------------------------------------------------------------------------


def test_only_the_runs_processes_can_be_seen(node: ServedNode) -> None:
    numbers = [int(name) for name in node.output("ls", "/proc").split() if name.isdigit()]
    assert len(numbers) < 10 < len(psutil.pids())
    assert node.read("/proc/1/comm") == "nodectl-twin-1"


def test_the_first_processes_namespaces_and_root_are_the_twins(node: ServedNode) -> None:
    assert node.read(f"/proc/1/root/sys/{KNOB}") == TOP_KHZ
    assert node.output("nsenter", "-t", "1", "-m", "-p", "cat", f"/sys/{KNOB}").strip() == TOP_KHZ


def test_what_a_command_leaves_running_ends_with_the_run() -> None:
    script = "setsid sleep 987654 >/dev/null 2>&1 & setsid setsid sleep 987655 >/dev/null 2>&1 & exit 3"
    done = subprocess.run(
        twin_command("run", "--machine", "curie", "--", "sh", "-c", script), env=environment(), cwd=ROOT, check=False
    )
    assert done.returncode == 3
    assert not [each for each in psutil.process_iter(["cmdline"]) if "98765" in " ".join(each.info["cmdline"] or ())]


# ---- settings ------------------------------------------------------------------------------------------------------


def test_a_sysctl_is_the_runs_own(node: ServedNode) -> None:
    host = Path(SYSCTL).read_text()
    assert node.read(SYSCTL) == host.strip()
    node.output("sh", "-c", f"echo 7 >{SYSCTL}")
    assert node.read(SYSCTL) == "7"
    assert node.output("sysctl", "-n", "vm.stat_interval").strip() == "7"
    assert shell(node, f"mount -t proc none $at; cat $at{SYSCTL.removeprefix('/proc')}") == "7"
    assert Path(SYSCTL).read_text() == host


def test_a_sysctl_takes_the_numbers_that_the_kernel_takes(node: ServedNode) -> None:
    for text in ("many", "1 2"):
        assert "Invalid argument" in failing(node, "sh", "-c", f"echo {text} | tee {SYSCTL}")
    several = "/proc/sys/net/ipv4/tcp_rmem"
    first, *rest = Path(several).read_text().split()
    node.output("sh", "-c", f"echo {int(first) + 1} >{several}")
    assert node.read(several).split() == [str(int(first) + 1), *rest]
    assert "Permission denied" in failing(node, "sh", "-c", "echo 1 >/proc/sys/kernel/random/uuid")


def test_what_takes_effect_at_once_is_refused(tmp_path: Path) -> None:
    trigger = "/proc/sysrq-trigger"
    copy = mirror.Mirror((trigger,))
    if copy.roots:
        with pytest.raises(PermissionError):
            copy.write(trigger, b"b")
    assert trigger in mirror.ROOTS and trigger in mirror.REFUSED


def test_another_file_of_sys_is_written_in_the_runs_memory_alone(node: ServedNode) -> None:
    candidates = ("/sys/kernel/mm/ksm/run", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/profiling")
    path = next(path for path in candidates if os.path.exists(path) and os.access(path, os.W_OK))
    host = Path(path).read_text()
    node.output("sh", "-c", f"echo 31 >{path}")
    assert node.read(path) == "31"
    assert Path(path).read_text() == host


def test_interrupts_are_steered_in_the_run_alone(node: ServedNode) -> None:
    path = "/proc/irq/default_smp_affinity"
    host = Path(path).read_text()
    node.output("sh", "-c", f"echo 1 >{path}")
    assert node.read(path) == "1"
    assert Path(path).read_text() == host


# ---- devices, sockets, calls ---------------------------------------------------------------------------------------


def test_no_device_of_the_host_moves_anything(node: ServedNode) -> None:
    shown = set(node.output("find", "/dev", "-type", "c", "-o", "-type", "b", "-o", "-type", "f").split())
    registers = {path for path in shown if path.startswith("/dev/cpu/")}
    assert not {f"/dev/{name}" for name in DEVICES} & (shown - registers)
    mounted = next(line.split() for line in node.read("/proc/mounts").splitlines() if " /dev/cpu " in line)
    assert mounted[0] == "nodectl-twin-msr" and "nodev" in mounted[3].split(",")
    assert registers and node.output("sh", "-c", "stat -c %d /dev/cpu/*/msr | uniq | wc -l") == "1\n"
    assert {"/dev/null", "/dev/tty", "/dev/cpu_dma_latency"} <= shown
    node.output("sh", "-c", "printf 0000 >/dev/cpu_dma_latency")  # keeps the run's CPUs awake, not the host's


def test_no_node_for_a_device_can_be_made(node: ServedNode, escapes: str) -> None:
    for kind, numbers in (("c", "202 0"), ("c", "195 0"), ("b", "8 0"), ("c", "10 130")):
        assert "not permitted" in failing(node, "sh", "-c", f"mknod /run/node {kind} {numbers}")
    assert node.output(escapes, "mknod-i386", "/run/node").strip() == str(errno.ENOSYS)
    assert shell(node, "mknod $at/null c 1 3; mkfifo $at/pipe; echo x >$at/null; ls $at") == "null\npipe"


def test_no_daemon_of_the_host_can_be_reached(node: ServedNode) -> None:
    code = (
        "import socket, sys\n"
        "for name in sys.argv[1:]:\n"
        " try: socket.socket(socket.AF_UNIX).connect('/run/' + name); print(name)\n"
        " except FileNotFoundError: pass"
    )
    assert node.python(code, *SOCKETS) == ""
    assert node.python("import os; print(*(name for name in os.environ if 'DBUS' in name or 'DOCKER' in name))") == "\n"


def test_the_kernel_is_neither_extended_nor_bypassed(node: ServedNode, escapes: str) -> None:
    for call in ("module", "ports"):
        assert node.output(escapes, call).strip() == str(errno.EPERM)
    assert node.output(escapes, "listener").strip() == str(errno.EBUSY)


def test_the_hosts_time_swap_and_kernel_log_are_not_changed(node: ServedNode, escapes: str) -> None:
    for call in (("set-time",), ("adjust",), ("log", "8")):
        assert node.output(escapes, *call).strip() == str(errno.EPERM), call
    assert node.output(escapes, "log", "10").strip() == "ok"
    assert "Not superuser" in failing(node, "swapoff", __file__)


def test_calls_of_another_architecture_are_as_if_there_were_none(node: ServedNode, escapes: str) -> None:
    for call in ("mount-i386", "mount-x32"):
        assert node.output("unshare", "-m", escapes, call, "sysfs", "/mnt").strip() == str(errno.ENOSYS)


def test_io_uring_opens_what_open_opens(node: ServedNode, escapes: str) -> None:
    answer = node.output(escapes, "uring", f"/sys/{KNOB}").strip()
    assert answer in (TOP_KHZ, str(errno.ENOSYS), str(errno.EPERM))  # the last two: switched off on this host


# ---- how a run begins ----------------------------------------------------------------------------------------------


def run_from(directory: str, *command: str, redirect: str = "") -> subprocess.CompletedProcess[str]:
    line = subprocess.list2cmdline(twin_command("run", "--machine", "curie", "--", *command))
    return subprocess.run(
        ["sh", "-c", f"{line} {redirect}"],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run_from_within_the_hosts_sys_stands_in_the_twins(tmp_path: Path) -> None:
    done = run_from("/sys/devices/system/cpu", "cat", "cpu0/cpufreq/scaling_max_freq")
    assert (done.stdout.strip(), done.returncode) == (TOP_KHZ, 0)


def test_a_run_from_a_removed_directory_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            "sh",
            "-c",
            'mkdir gone; cd gone; rmdir ../gone; "$@"',
            "sh",
            *twin_command("run", "--machine", "curie", "true"),
        ],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "nodectl twin: the directory where this was started has been removed\n",
    )


def test_a_file_of_the_hosts_sys_is_not_inherited() -> None:
    done = run_from(
        "/", "cat", redirect="7</sys/kernel/profiling" if os.path.exists("/sys/kernel/profiling") else "7</sys"
    )
    assert "7" in done.stderr or done.returncode == 0
    refused = run_from("/", "cat", redirect="</sys/kernel/mm/transparent_hugepage/enabled")
    assert refused.returncode == 2 and "open on the host's /sys" in refused.stderr


def test_a_sysfs_that_the_host_has_mounted_a_second_time_is_the_twins_in_a_run(tmp_path: Path) -> None:
    script = f"mount --make-rprivate / && mount -t sysfs none {tmp_path} && " + subprocess.list2cmdline(
        twin_command("run", "--machine", "curie", "--", "cat", f"{tmp_path}/{KNOB}")
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], env=environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (TOP_KHZ, "")


def test_a_device_is_shown_when_it_is_requested(stand_ins: None) -> None:
    command = twin_command("run", "--machine", "curie", "--device", "/dev/rfkill", "--", "ls", "/dev/rfkill")
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "/dev/rfkill\n"
    command[command.index("/dev/rfkill")] = "/dev/none"
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "nodectl twin: --device /dev/none: no such device below /dev\n")


def test_a_run_under_a_service_manager_can_say_that_it_is_ready(tmp_path: Path) -> None:
    path = "/run/nodectl-test-notify"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(60)
        code = "import os, socket; socket.socket(1, 2).sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])"
        subprocess.run(
            twin_command("run", "--machine", "curie", "--", "python3", "-c", code),
            env={**environment(), "NOTIFY_SOCKET": path},
            cwd=ROOT,
            check=True,
        )
        assert manager.recv(64) == b"READY=1"
    os.unlink(path)
