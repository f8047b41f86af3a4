"""The namespaces of a run, set up so that no path in it leads to the host's knobs.

    /sys    overlay (memory over the host's sysfs), the twin's directories bound into it
    /proc   of the run's own PID namespace, the twin's files and private settings (mirror.py) bound over it
    /dev    memory: harmless nodes alone
    /run    memory: no socket of the host's daemons
    /boot   read-only

Each *replaces* the host's mount instead of covering it, so an unmount shows an empty directory. The order makes this
safe: the namespace is made private before any mount, so no mount propagates to the host. sysfs refuses mkdir, hence the
overlay; a program that writes to another file of /sys writes to its own copy. The command gets a second copy of all
this (``leave_to_command``); from the first one the listener (csrc/serve_syscalls.c) clones the trees that it mounts in
other namespaces.

Nothing is unmounted at the end: the namespace ends with its last process. A process that outlives the twin's server
gets ENOTCONN, never the host's files below a removed mount.
Source: mount_namespaces(7), pid_namespaces(7), Linux Documentation/filesystems/overlayfs.rst.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import twin
from twin._serve import lib
from twin.errors import TwinError
from twin.files import procfs
from twin.files.sysfs_nodes import mask, ranges
from twin.machine import Machine
from twin.nvml import loader_cache
from twin.serve import mounts

RUN_DIRECTORY = "/run/nodectl-twin"
"""On the host: one file per run. In a run's namespace: the run's own directory, in memory."""

CONTROL = f"{RUN_DIRECTORY}/control"
GPUS = f"{RUN_DIRECTORY}/gpus"
GPU_READERS = f"{RUN_DIRECTORY}/gpu-readers"
WORKLOAD = "workload"
"""The socket there by which any program of the run puts a workload on the node (twin/programs/workload_socket.py)."""

COMMANDS = f"{RUN_DIRECTORY}/bin"
"""Commands that a node has and a run has as its own; first on the run's PATH."""

_INSIDE = f"{RUN_DIRECTORY}/inside"  # not in the command's namespace
TREE = f"{_INSIDE}/tree"
SPARE = f"{_INSIDE}/spare"
EMPTY = f"{_INSIDE}/empty"  # a sysfs without files, for mounts of sysfs by programs
_SYS, _LAYERS = f"{_INSIDE}/sys", f"{_INSIDE}/layers"

DEVICES = (
    *("console", "full", "fuse", "kvm", "null", "ptmx", "random", "tty", "urandom", "userfaultfd", "zero"),
    *("infiniband/*", "net/tun", "vhost-net", "vhost-vsock"),
)
"""The host's device nodes that a run gets: none moves a clock, a limit, a timer that resets the node, or a disk."""

_DEVICE_MOUNTS = ("hugepages", "mqueue", "pts", "shm")
_DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
_DMA_LATENCY = (2_000_000_000).to_bytes(4, "little")
"""Value of /dev/cpu_dma_latency without requests, in us (kernel/power/qos.c). In a run it is a plain file."""

_KEPT_OF_RUN = ("munge", "nscd", "resolvconf", "systemd/resolve", "udev/data")
"""Parts of the host's /run that a run gets: name services, authentication between nodes, device data. None reaches a
knob."""

EMPTY_OF_SYSFS = ("/kernel/debug", "/kernel/tracing", "/kernel/security", "/fs/fuse/connections", "/fs/bpf")
"""Mount points in sysfs. An empty sysfs is mounted below the overlay, since perf looks for a sysfs in /proc/mounts."""

_CGROUPS = ("cgroup", "cgroup2", "tmpfs")
CONTROLS = (
    *("debugfs", "tracefs", "efivarfs", "securityfs", "configfs", "pstore", "resctrl", "fusectl", "binfmt_misc"),
    *("selinuxfs", "bpf"),
)
"""File systems that control the kernel, as in csrc/serve_trees.c."""

NVML_NAME = "libnvidia-ml.so.1"
_NVML_PLACES = (
    "/usr/lib*",
    "/usr/lib/*-linux-gnu*",
    "/usr/lib/*-linux-gnu/nvidia/*",
    "/usr/local/nvidia/lib*",
    "/lib*",
)
_SMI_NAME = "nvidia-smi"
_SMI = """\
#!{python} -I
import sys
sys.path.insert(0, {root!r})
from twin.smi.smi_program import main
sys.exit(main())
"""
_STATE = "/var/lib/nodectl"  # where an agent keeps journals, jobs, tables: of this node, not of the host
_MPS = "/tmp/nvidia-mps"  # default socket directory of NVIDIA's multi-process service

_CLONE_NEWNS, _CLONE_NEWUTS = 0x20000, 0x4000000


def leave_host(notify_socket: str | None, extra_devices: Iterable[str]) -> None:
    """In the run's first process: make its namespaces, and replace the host's /run, /dev and /proc.

    ``notify_socket`` is the service manager's socket for READY=1, if any; ``extra_devices`` are devices that the user
    requested.
    """
    if error := lib.namespaces_leave(_CLONE_NEWNS | _CLONE_NEWUTS):
        raise TwinError(f"no mount namespace of its own: {os.strerror(-error)}; serving a twin needs CAP_SYS_ADMIN")
    mounts.mount("none", "/", flags=mounts.RECURSIVE | mounts.PRIVATE)
    _replace_run(notify_socket)
    _replace_devices(extra_devices)
    mounts.detach("/proc")
    mounts.mount("proc", "/proc", "proc", mounts.NOSUID | mounts.NODEV | mounts.NOEXEC)
    if os.path.isdir("/boot"):
        mounts.bind("/boot", "/boot")
        mounts.make_read_only("/boot")
    if os.path.isdir(_MPS):
        mounts.mount("nodectl-twin", _MPS, "tmpfs")
    with contextlib.suppress(OSError):
        os.mkdir(_STATE, 0o700)  # on the host, where else the first agent of a run would make it
    if os.path.isdir(_STATE):
        mounts.mount("nodectl-twin", _STATE, "tmpfs", options="mode=0755")


def _replace_run(notify_socket: str | None) -> None:
    with mounts.built_aside("tmpfs", "/run", "mode=0755") as run:
        for name in ("nodectl-twin", "lock", f"user/{os.getuid()}"):
            os.makedirs(f"{run}/{name}")
        os.chmod(f"{run}/lock", 0o1777)
        os.chmod(f"{run}/user/{os.getuid()}", 0o700)
        for name in _KEPT_OF_RUN:
            if os.path.isdir(f"/run/{name}"):
                os.makedirs(f"{run}/{name}")
                mounts.bind(f"/run/{name}", f"{run}/{name}")
                mounts.make_read_only(f"{run}/{name}")
        if notify_socket and notify_socket.startswith("/run/") and os.path.exists(notify_socket):
            shown = run + notify_socket.removeprefix("/run")
            os.makedirs(os.path.dirname(shown), exist_ok=True)
            open(shown, "x").close()
            mounts.bind(notify_socket, shown)
    if not os.path.islink("/var/run") and os.path.isdir("/var/run"):
        mounts.bind("/run", "/var/run")
    os.mkdir(_INSIDE)
    mounts.mount("nodectl-twin", _INSIDE, "tmpfs", options="mode=0700")
    for place in (TREE, SPARE, EMPTY, _SYS, f"{_LAYERS}/upper", f"{_LAYERS}/work"):
        os.makedirs(place)


def _replace_devices(extra: Iterable[str]) -> None:
    found = [path for name in DEVICES for path in sorted(glob.glob(f"/dev/{name}"))]
    with mounts.built_aside("tmpfs", "/dev", "mode=0755") as devices:
        for path in (*found, *extra):
            status = os.stat(path)
            node = devices + path.removeprefix("/dev")
            os.makedirs(os.path.dirname(node), exist_ok=True)
            os.mknod(node, status.st_mode, status.st_rdev)
            os.chmod(node, stat.S_IMODE(status.st_mode))
            os.chown(node, status.st_uid, status.st_gid)
        for name in _DEVICE_MOUNTS:
            if os.path.isdir(f"/dev/{name}"):
                os.mkdir(f"{devices}/{name}")
                mounts.bind(f"/dev/{name}", f"{devices}/{name}")
        os.mkdir(f"{devices}/cpu")  # the twin's registers are mounted there
        for name, target in _DEVICE_LINKS.items():
            os.symlink(target, f"{devices}/{name}")
        with open(f"{devices}/cpu_dma_latency", "xb") as file:
            file.write(_DMA_LATENCY)


def cover_sysfs(roots: Iterable[str], machine: Machine) -> None:
    """Replace the host's /sys by an overlay with the twin's directories, which are served at ``TREE``. Where it names
    the CPUs near a device or of a cgroup, these are the machine's."""
    upper, work = f"{_LAYERS}/upper", f"{_LAYERS}/work"
    for root in roots:
        os.makedirs(upper + root.removeprefix("/sys"), exist_ok=True)
        os.setxattr(upper + root.removeprefix("/sys"), "trusted.overlay.opaque", b"y")  # hides the host's below it
    _name_local_cpus(upper, machine)
    mounts.mount("nodectl-twin", _SYS, "overlay", options=f"lowerdir=/sys,upperdir={upper},workdir={work}")
    _carry_submounts()
    _cover_cpusets(machine)
    for root in roots:
        mounts.mount(TREE + root, _SYS + root.removeprefix("/sys"), flags=mounts.BIND)
    empty = next((f"/sys{path}" for path in EMPTY_OF_SYSFS if os.path.isdir(f"/sys{path}")), None)
    if empty:
        mounts.mount(empty, EMPTY, flags=mounts.BIND)
        mounts.make_read_only(EMPTY)
    mounts.detach("/sys")
    if empty:
        mounts.mount(EMPTY, "/sys", flags=mounts.BIND)
    mounts.mount(_SYS, "/sys", flags=mounts.MOVE)


def _name_local_cpus(upper: str, machine: Machine) -> None:
    """Every CPU is near every device of the host's PCI buses (hwloc takes the CPUs that are named for real)."""
    texts = {"local_cpus": mask(range(machine.cpus), machine.cpus), "local_cpulist": ranges(range(machine.cpus))}
    for link in glob.glob("/sys/bus/pci/devices/*"):
        folder = upper + os.path.realpath(link).removeprefix("/sys")
        os.makedirs(folder, exist_ok=True)
        for name, text in texts.items():
            with open(f"{folder}/{name}", "w") as file:
                file.write(f"{text}\n")


def _cover_cpusets(machine: Machine) -> None:
    """The run's own cgroup and those above it have all CPUs and nodes of the machine; what is written there is kept
    and limits nothing."""
    texts = {"cpus": ranges(range(machine.cpus)), "mems": ranges(range(machine.sockets))}
    for number, (path, kind) in enumerate(_cpuset_files()):
        shown = f"{_LAYERS}/cpuset{number}"
        with open(shown, "w") as file:
            file.write(f"{texts[kind]}\n")
        mounts.mount(shown, path, flags=mounts.BIND)


def _cpuset_files() -> Iterator[tuple[str, str]]:
    """Files with the CPUs ("cpus") and nodes ("mems") of our cgroup, by their present paths (cpuset(7),
    Documentation/admin-guide/cgroup-v2.rst)."""
    with open("/proc/self/cgroup", errors="surrogateescape") as lines:
        places = {line.rstrip("\n").split(":", 2)[2] for line in lines}
    folders = {"/"} | {place[: at + 1] for place in places for at, letter in enumerate(f"{place}/") if letter == "/"}
    hierarchies = [
        each for each in mounts.listed() if each.type in ("cgroup", "cgroup2") and each.point.startswith(_SYS)
    ]
    for each in hierarchies:
        for folder in sorted(folders):
            for kind in ("cpus", "mems"):
                for name in (f"cpuset.{kind}", f"cpuset.effective_{kind}", f"cpuset.{kind}.effective"):
                    path = f"{each.point}{folder}/{name}"
                    if os.path.isfile(path):
                        yield path, kind


def _carry_submounts() -> None:
    """Mount the file systems that are directly on /sys in the overlay too: cgroups unchanged, kernel controls
    read-only."""
    found = list(mounts.listed())
    sysfs = {each.number for each in found if each.point == "/sys"}
    for each in found:
        shown = _SYS + each.point.removeprefix("/sys")
        if each.parent not in sysfs or each.point == "/sys" or each.type == "resctrl" or not os.path.isdir(shown):
            continue
        mounts.bind(each.point, shown)
        if each.type not in _CGROUPS:
            mounts.make_read_only(shown)


def cover_proc(settings: Iterable[str]) -> None:
    """Mount the twin's files of /proc, and private copies of the host's ``settings``, over the run's /proc."""
    for path in (*procfs.FILES, *settings):
        mounts.mount(TREE + path, path, flags=mounts.BIND)


def cover_nvml(library: str) -> None:
    """Put the twin's library on the loader's default path, and mount it over each installed real one, for programs
    that load it by its full path."""
    if os.path.exists(loader_cache.PLACE):
        with open(loader_cache.PLACE, "rb") as known, open(f"{_LAYERS}/ld.so.cache", "xb") as list_of_run:
            try:
                list_of_run.write(loader_cache.with_library(known.read(), library))
            except loader_cache.UnknownListError as error:
                raise TwinError(f"{loader_cache.PLACE}: {error}") from None
        mounts.mount(list_of_run.name, loader_cache.PLACE, flags=mounts.BIND)
    places = {os.path.realpath(found) for place in _NVML_PLACES for found in glob.glob(f"{place}/{NVML_NAME}")}
    for place in places:
        if not os.path.samefile(place, library):
            mounts.mount(library, place, flags=mounts.BIND)


def offer_nvidia_smi() -> None:
    """Put the twin's nvidia-smi (twin/smi) into ``COMMANDS``, and mount it over each installed real one. Without
    pynvml, over which it works, the run has none."""
    if importlib.util.find_spec("pynvml") is None:
        return
    command = f"{COMMANDS}/{_SMI_NAME}"
    os.mkdir(COMMANDS)
    with open(command, "x") as file:
        file.write(_SMI.format(python=sys.executable, root=str(Path(twin.__file__).parents[1])))
    os.chmod(command, 0o755)
    folders = {*os.get_exec_path(), *os.defpath.split(":"), "/usr/sbin", "/sbin", "/usr/local/bin"}
    for place in {os.path.realpath(f"{folder}/{_SMI_NAME}") for folder in folders if folder}:
        if os.path.exists(place):
            mounts.mount(command, place, flags=mounts.BIND)


def cover_others() -> None:
    """Replace further mounts of the host's sysfs, procfs and devices too, for instance of a chroot."""
    own_proc = os.stat("/proc").st_dev
    stand_ins = {"sysfs": "/sys", "proc": "/proc", "devtmpfs": "/dev"}
    for each in list(mounts.listed()):
        if each.type in CONTROLS and not each.point.startswith("/sys/"):
            mounts.make_read_only(each.point)
        if each.root in EMPTY_OF_SYSFS and each.point in ("/sys", EMPTY):
            continue
        if each.type not in stand_ins or not os.path.lexists(each.point) or os.stat(each.point).st_dev == own_proc:
            continue
        mounts.detach(each.point)
        source = stand_ins[each.type] + each.root.rstrip("/")
        if os.path.isdir(each.point) and os.path.isdir(source):
            mounts.bind(source, each.point)


def leave_to_command(directory: str) -> None:
    """In the command's process: copy the namespace, drop the server's parts, and change to ``directory``."""
    if error := lib.namespaces_leave(_CLONE_NEWNS):
        raise TwinError(f"no mount namespace for the command: {os.strerror(-error)}")
    mounts.detach(_INSIDE)
    try:
        os.chdir(directory)  # by its path: the old directory may be the host's
    except OSError as error:
        raise TwinError(f"{directory}, where this was started, cannot be entered here: {error.strerror}") from None


def abort_fuse(devices: Iterable[int]) -> None:
    """Abort FUSE connections by the ``st_dev`` of their file systems; ignores those that have ended."""
    place = f"{_INSIDE}/connections"
    if not os.path.isdir(place):
        os.makedirs(place)
        mounts.mount("none", place, "fusectl")
    for device in devices:
        with contextlib.suppress(FileNotFoundError), open(f"{place}/{os.minor(device)}/abort", "w") as abort:
            abort.write("1")
