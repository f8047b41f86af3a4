"""hwmon: temperatures and board power from the machine's sensor chips.

coretemp (Intel) makes one device per package: temp1 is the package, temp(N+2) the core with core_id N. k10temp (AMD) is
the fourth PCI function of each package's first die and numbers its inputs through. spd5118 is the hub of one DDR5
module: each package shows one of its modules, which are all alike. acpi_power_meter shows what the board draws. tmp421
is on the board, where the air comes in; the device tree gives its input a label. amd_energy (Linux 5.8 to 5.12; AMD's
own driver since) counts the energy of each core. Temperatures are millidegrees in the sensor's own steps, power is
microwatts, energy microjoules.
Source: Linux Documentation/hwmon/{amd_energy,coretemp,k10temp,spd5118,tmp421,acpi_power_meter,sysfs-interface}.rst,
drivers/hwmon/{coretemp,tmp421}.c, Documentation/devicetree/bindings/hwmon/ti,tmp421.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from twin.files.sysfs_nodes import Nodes
from twin.machine import Sensor
from twin.physics.model import Twin

CLASS = "/sys/class/hwmon"

I2C = "/sys/bus/i2c"

STEP_MC = {"coretemp": 1000, "k10temp": 125, "spd5118": 250, "tmp421": 62.5}
"""A digital readout counts whole degrees below Tjmax (IA32_THERM_STATUS), AMD's register eighths of a degree, the
hub of a DDR5 module quarters (JEDEC JESD300-5), tmp421's registers sixteenths."""

_ON_I2C = {"spd5118": (0, 0x50), "tmp421": (8, 0x4C)}
"""Chips with an address on I2C: the first of their buses, ours, and the address there, of 0x50 to 0x57 for the hub of a
module, and of 0x1c to 0x1f, 0x2a and 0x4c to 0x4f for tmp421."""


def add(nodes: Nodes, twin: Twin) -> tuple[str, ...]:
    """Add one hwmon device per chip; returns the folders of the chips."""
    chips: dict[tuple[str, int], list[tuple[int, Sensor]]] = {}
    for index, sensor in enumerate(twin.machine.sensors):
        chips.setdefault((sensor.chip, sensor.chip_index), []).append((index, sensor))
    folders = []
    for number, ((chip, chip_index), sensors) in enumerate(chips.items()):
        device, bus = _device(chip, chip_index)
        folder = f"{device}/hwmon/hwmon{number}"
        nodes.device(device, bus)
        nodes.device(folder, CLASS)
        nodes.link(f"{folder}/device", device)
        nodes.link(f"{CLASS}/hwmon{number}", folder)
        nodes.file(f"{folder}/name", f"{chip}\n")
        _add_inputs(nodes, twin, folder, sensors)
        folders.append(device)
        if bus == I2C:
            folders[-1] = _add_adapter(nodes, device, chip)
    if I2C in nodes.children:
        folders.append(I2C)
    return tuple(folders)


def _add_adapter(nodes: Nodes, device: str, chip: str) -> str:
    """The bus on which the chip is, under its name; returns its folder."""
    adapter = device.rpartition("/")[0]
    nodes.device(adapter, I2C)
    nodes.file(f"{adapter}/name", f"SMBus PIIX4 adapter port {adapter.rpartition('-')[2]} at 0b00\n")
    nodes.file(f"{device}/name", f"{chip}\n")
    for folder in (adapter, device):
        nodes.link(f"{I2C}/devices/{folder.rpartition('/')[2]}", folder)
    return adapter


def _device(chip: str, index: int) -> tuple[str, str]:
    """The folder and the bus of a chip."""
    if chip == "k10temp":
        return f"/sys/devices/pci0000:00/0000:00:{0x18 + index:02x}.3", "/sys/bus/pci"
    if chip == "power_meter":
        return f"/sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI000D:{index:02x}", "/sys/bus/acpi"
    if chip in _ON_I2C:
        first, address = _ON_I2C[chip]
        bus = first + index
        return f"/sys/devices/pci0000:00/0000:00:14.0/i2c-{bus}/{bus}-{address:04x}", I2C
    return f"/sys/devices/platform/{chip}.{index}", "/sys/bus/platform"


def _add_inputs(nodes: Nodes, twin: Twin, folder: str, sensors: list[tuple[int, Sensor]]) -> None:
    count = {"temperature": 0, "power": 0, "energy": 0}
    for index, sensor in sensors:
        count[sensor.kind] += 1
        number = count[sensor.kind]
        if sensor.kind == "power":
            nodes.file(f"{folder}/power{number}_average", _power_uw(twin, index))
            nodes.file(f"{folder}/power{number}_label", f"{sensor.label}\n")
            continue
        if sensor.kind == "energy":
            nodes.file(f"{folder}/energy{number}_input", _core_uj(twin, sensor.index))
            nodes.file(f"{folder}/energy{number}_label", f"{sensor.label}\n")
            continue
        if sensor.chip == "coretemp" and sensor.of == "core":
            number = sensor.index % twin.machine.cores_per_socket + 2
        stem = f"{folder}/temp{number}"
        nodes.file(f"{stem}_input", _temperature_mc(twin, index, STEP_MC.get(sensor.chip, 1)))
        if sensor.label:
            nodes.file(f"{stem}_label", f"{sensor.label}\n")
        if sensor.max_c:
            nodes.file(f"{stem}_max", f"{round(sensor.max_c * 1000)}\n")
        if sensor.critical_c:
            nodes.file(f"{stem}_crit", f"{round(sensor.critical_c * 1000)}\n")
            if sensor.chip == "coretemp":
                nodes.file(f"{stem}_crit_alarm", _alarm(twin, index, sensor.critical_c))


def _temperature_mc(twin: Twin, sensor: int, step_mc: float) -> Callable[[], str]:
    return lambda: f"{math.floor(twin.temperature_mc(sensor) // step_mc * step_mc + 0.5)}\n"


def _power_uw(twin: Twin, sensor: int) -> Callable[[], str]:
    return lambda: f"{twin.power_uw(sensor)}\n"


def _core_uj(twin: Twin, core: int) -> Callable[[], str]:
    return lambda: f"{int(twin.core_energy_j(core) * 1e6)}\n"


def _alarm(twin: Twin, sensor: int, critical_c: float) -> Callable[[], str]:
    return lambda: f"{twin.temperature_mc(sensor) >= critical_c * 1000:d}\n"
