"""The machines that a guest kernel runs on: a process of this one (user-mode Linux), and QEMU's `virt` (arm64).

Each has a function that gives the command for ``Guest``, and one that says why it cannot run here.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from hil_tests.linux.guest import Guest, GuestRefusal

HERE: Final = Path(__file__).parent
FAST_WINDOW: Final = 0x4FF0_0000
"""Guest-physical address of the FastChannels in QEMU's machine: `reserved-memory` of scmi-arm64.dtsi."""

_VIRTIO_SCMI: Final = 32
_WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Werror")


# ---- user-mode Linux ----


def user_mode(socket: Path | None, log: Path) -> list[str | Path]:
    """Without a socket the guest has no device. The log is what it writes to stderr."""
    del log
    device = [] if socket is None else [f"virtio_uml.device={socket}:{_VIRTIO_SCMI}"]
    command = [_found("build.sh", "um", "find"), "mem=64M", f"initrd={_ramdisk('cc')}", f"dtb={_tree()}", *device]
    return [*command, "con=null", "con0=null,fd:2", "console=tty0", "con1=fd:0,fd:1", "panic=-1", "LINE=4:1"]


@cache
def missing_for_user_mode() -> str | None:
    """Starts it once without a device: on some machines it panics at once, with other registers or under restrictions,
    and then every scenario would start it in vain."""
    if not _found("build.sh", "um", "find"):
        return "the guest kernel has not been built: run `make hil-linux`"
    log = Path(_folder().name) / "probe.log"
    try:
        Guest(user_mode(None, log), log).stop()
    except GuestRefusal:
        return None  # it runs, and has found no SCMI platform
    except (EOFError, TimeoutError, OSError):
        return f"user-mode Linux does not run on this machine: {last_words(log.read_text(errors='replace'))}"
    return None


def last_words(log: str) -> str:
    """What a kernel's log says of its end: the line before its panic and the panic, or the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    at = next((at for at, line in enumerate(lines) if line.startswith("Kernel panic")), None)
    return "; ".join(lines[max(at - 1, 0) : at + 1]) if at is not None else lines[-1] if lines else "it says nothing"


# ---- QEMU ----


def qemu(socket: Path, log: Path) -> list[str | Path]:
    """Four emulated CPUs, one for each performance domain; memory that the device's process can map."""
    image, tree = _found("build.sh", "arm64", "find"), _qemu_tree()
    arguments: list[str | Path] = [
        "-kernel",
        image,
        "-initrd",
        _ramdisk("aarch64-linux-gnu-gcc"),
        "-dtb",
        tree,
        "-no-reboot",
    ]
    serial = ["-chardev", f"file,id=log,path={log},append=on", "-serial", "chardev:log"]
    serial += ["-chardev", "stdio,id=rig,signal=off", "-serial", "chardev:rig"]
    device = ["-chardev", f"socket,id=scmi,path={socket}", "-device", "vhost-user-scmi-pci,chardev=scmi"]
    return [*_virt(), *arguments, "-append", "console=ttyAMA0 panic=-1 LINE=204:65", *serial, *device]


@cache
def missing_for_qemu() -> str | None:
    """The kernel or a QEMU with the device."""
    for script, words in (("build.sh", ("arm64", "find")), ("qemu.sh", ("find",))):
        if not _found(script, *words):
            return _run(script, *words).stderr.strip().removeprefix("hil-linux: ")
    return None


def _virt(machine: str = "virt,memory-backend=mem") -> list[str | Path]:
    size = "256M"
    memory = ["-m", size, "-object", f"memory-backend-memfd,id=mem,size={size},share=on"]
    return [
        _found("qemu.sh", "find"),
        "-M",
        machine,
        "-cpu",
        "cortex-a57",
        "-smp",
        "4",
        *memory,
        "-nodefaults",
        *_PLAIN,
    ]


_PLAIN = ("-display", "none")


@cache
def _qemu_tree() -> Path:
    """QEMU's own device tree, with the SCMI platform and its users added."""
    folder = Path(_folder().name)
    plain, tree = folder / "virt.dtb", folder / "scmi-arm64.dtb"
    command = [*_virt(f"virt,memory-backend=mem,dumpdtb={plain}"), "-serial", "null", "-serial", "null"]
    subprocess.run(command, check=True, capture_output=True)
    source = subprocess.run(["dtc", "-q", "-I", "dtb", "-O", "dts", plain], check=True, capture_output=True).stdout
    both = source + (HERE / "scmi-arm64.dtsi").read_bytes()
    subprocess.run(["dtc", "-q", "-I", "dts", "-O", "dtb", "-o", tree], input=both, check=True)
    return tree


# ---- what both need ----


@cache
def _run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HERE / script, *words], capture_output=True, text=True, check=False)


def _found(script: str, *words: str) -> str:
    """The path that a script prints; empty when it finds none."""
    return _run(script, *words).stdout.strip()


@cache
def _folder() -> TemporaryDirectory[str]:
    """Goes with this process."""
    return TemporaryDirectory(prefix="hil-linux-")


@cache
def _ramdisk(compiler: str) -> Path:
    """An initial ramdisk with one static program."""
    folder = Path(_folder().name) / compiler
    folder.mkdir()
    program, archive = folder / "init", folder / "initrd.cpio"
    flags = ("-std=c11", "-D_GNU_SOURCE", "-static", "-O2", *_WARNINGS)
    subprocess.run([compiler, *flags, "-o", program, HERE / "init.c"], check=True)
    with archive.open("wb") as target:
        subprocess.run(
            ["cpio", "--create", "--format=newc", "--quiet"], input=b"init\n", stdout=target, cwd=folder, check=True
        )
    return archive


@cache
def _tree() -> Path:
    """The device tree of user-mode Linux, compiled."""
    tree = Path(_folder().name) / "scmi.dtb"
    subprocess.run(["dtc", "-q", "-O", "dtb", "-o", tree, HERE / "scmi.dts"], check=True)
    return tree
