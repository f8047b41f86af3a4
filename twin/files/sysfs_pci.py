"""The PCI bus with the machine's GPUs: what a kernel shows of a card before any driver has it.

The bus of a twin has its cards and nothing else: what the host has is not the twin's.
Source: Linux Documentation/PCI/sysfs-pci.rst, drivers/pci/pci-sysfs.c.
"""

from __future__ import annotations

from twin._model import ffi
from twin.files.sysfs_nodes import Nodes
from twin.physics.model import Twin

BUS = "/sys/bus/pci"
DEVICES = f"{BUS}/devices"
DRIVER = f"{BUS}/drivers/nvidia"

NVIDIA, CONTROLLER_3D = 0x10DE, 0x030200

DEVICE_IDS = {"volta": 0x1DB1, "ampere": 0x20B0, "hopper": 0x2330}
"""Of V100 SXM2, A100 SXM4 and H100 SXM5 (pci-ids.ucw.cz)."""


def add(nodes: Nodes, twin: Twin) -> tuple[str, ...]:
    """Add the bus and its cards; returns the folders to mount."""
    nodes.directory(DEVICES)
    nodes.directory(DRIVER)
    gpu = twin.machine.gpu
    folders = []
    for index in range(twin.machine.gpus if gpu else 0):
        address = _address(ffi.string(twin.gpus.gpu[index].pci_bus_id).decode())
        root = f"/sys/devices/pci{address[:7]}"
        folder = f"{root}/{address}"
        nodes.device(folder, BUS)
        nodes.file(f"{folder}/vendor", f"{NVIDIA:#06x}\n")
        nodes.file(f"{folder}/device", f"{DEVICE_IDS.get(gpu.architecture if gpu else '', 0):#06x}\n")
        nodes.file(f"{folder}/class", f"{CONTROLLER_3D:#08x}\n")
        nodes.link(f"{folder}/driver", DRIVER)
        nodes.link(f"{DEVICES}/{address}", folder)
        folders.append(folder)
    return (BUS, *folders)


def _address(bus_id: str) -> str:
    """sysfs has four digits of the domain, and small letters."""
    return bus_id[-12:].lower()
