"""Which machine a table is of: what must be the same for its figures to apply."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from pmu.findings import read_or_none
from pmu.layout import Layout
from pmu.ports import Files, Ports

CPUINFO: Final = "/proc/cpuinfo"


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text is "" where the machine does not say. ``driver``: of cpufreq; ``gpus``: names, in order."""

    cpu_model: str
    microcode: str
    packages: int
    cores: int
    threads: int
    firmware: str
    kernel: str
    driver: str
    gpus: tuple[str, ...] = ()
    gpu_driver: str = ""
    node: str = ""


MATTERS: Final = ("cpu_model", "packages", "cores", "threads", "microcode", "firmware", "driver", "gpus", "gpu_driver")
"""A table does not apply where one of these differs. Another kernel is a remark."""


def identity(ports: Ports, layout: Layout) -> Identity:
    """The identity of this node."""
    files = ports.files
    info = _cpuinfo(files)
    return Identity(
        cpu_model=info.get("model name", ""),
        microcode=info.get("microcode", ""),
        packages=len(set(layout.package_of)),
        cores=len(set(layout.core_of)),
        threads=len(layout.cpus),
        firmware=_text(files, "/sys/class/dmi/id/bios_version"),
        kernel=_text(files, "/proc/sys/kernel/osrelease"),
        driver=_text(files, f"/sys/devices/system/cpu/cpufreq/policy{layout.domains[0].policy}/scaling_driver")
        if layout.domains
        else "",
        gpus=tuple(gpu.name for gpu in layout.gpus),
        gpu_driver=_gpu_driver(ports),
        node=os.uname().nodename,
    )


def differences(was: Identity, now: Identity) -> tuple[list[str], list[str]]:
    """Why a table of ``was`` does not apply to ``now``, and remarks; a line each."""
    lines = {
        name: f"{name}: measured on {getattr(was, name) or 'unknown'}, this node has {getattr(now, name) or 'unknown'}"
        for name in (*MATTERS, "kernel")
        if getattr(was, name) != getattr(now, name)
    }
    return [lines[name] for name in MATTERS if name in lines], [lines[name] for name in ("kernel",) if name in lines]


def _text(files: Files, path: str) -> str:
    return (read_or_none(files, path) or "").strip()


def _cpuinfo(files: Files) -> dict[str, str]:
    """The lines of the first CPU."""
    found: dict[str, str] = {}
    for line in (read_or_none(files, CPUINFO) or "").splitlines():
        name, colon, value = line.partition(":")
        if not colon:
            break
        found[name.strip()] = value.strip()
    return found


def _gpu_driver(ports: Ports) -> str:
    if ports.nvml is None:
        return ""
    try:
        return str(ports.nvml.nvmlSystemGetDriverVersion())
    except ports.nvml.NVMLError:
        return ""
