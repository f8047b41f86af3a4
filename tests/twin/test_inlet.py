"""The air that an emulated node takes in: one temperature, which a sensor shows and all dies follow."""

from __future__ import annotations

import msgspec
import pytest

from pmu.instruments import hwmon
from twin.errors import TwinError
from twin.in_process_node import InProcess
from twin.machine import Machine, Sensor, load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload


def with_inlet(name: str) -> Machine:
    machine = load_machine(name)
    sensor = Sensor("tmp421", 0, "Inlet air", "temperature", "inlet", 0, 0.0, 0.0)
    return msgspec.structs.replace(machine, sensors=(*machine.sensors, sensor))


def test_a_sensor_shows_the_air_in_sixteenths_of_a_degree_and_an_agent_knows_it_as_an_inlet() -> None:
    twin = Twin(with_inlet("genoa-h100"))
    with InProcess(twin) as node:
        (column,) = (one for one in hwmon.find(node.ports).columns if one.part == "inlet")
        files = node.ports.files
        assert column.name.endswith("tmp421/Inlet air") and files.read(column.source) == "30000\n"
        for inlet_c, shown in ((31.47, "31438\n"), (-3.03, "-3062\n")):
            twin.set_inlet(inlet_c)
            assert files.read(column.source) == shown
        device = files.realpath(f"{column.source.rpartition('/')[0]}/device")
        assert files.read(f"{device}/name") == "tmp421\n"
        assert files.realpath("/sys/bus/i2c/devices/8-004c") == device
        assert files.read(f"{device.rpartition('/')[0]}/name") == "SMBus PIIX4 adapter port 8 at 0b00\n"


def test_packages_memory_and_gpus_follow_the_air_and_leakage_follows_them() -> None:
    """Dies and heat sinks of a twentieth of their mass, so that seconds are enough."""
    machine = load_machine("genoa-h100")
    assert machine.gpu is not None
    heats = [
        msgspec.structs.replace(
            heat, die_j_per_k=heat.die_j_per_k / 20, sink_j_per_k=heat.sink_j_per_k / 20, memory_tau_s=3.0
        )
        for heat in (machine.heat, machine.gpu.heat)
    ]
    light = msgspec.structs.replace(machine, heat=heats[0], gpu=msgspec.structs.replace(machine.gpu, heat=heats[1]))
    cool, warm = Twin(light), Twin(light)
    warm.set_inlet(light.heat.ambient_c + 10.0)
    for twin in (cool, warm):
        twin.advance(25.0)
    for place, sensor in enumerate(light.sensors):
        if sensor.kind == "temperature":
            assert warm.temperature_mc(place) - cool.temperature_mc(place) == pytest.approx(10_000, abs=1000), sensor
    assert warm.gpus.gpu[0].temperature_c - cool.gpus.gpu[0].temperature_c == pytest.approx(10, abs=1)
    assert warm.node_j > cool.node_j + 100.0


def test_air_as_in_the_machine_file_changes_no_bit() -> None:
    machine = load_machine("v100")
    twins = [Twin(machine, load_workload("mixed-gpu:1", machine, duration_s=20.0)) for _ in range(2)]
    twins[0].set_inlet(machine.heat.ambient_c)
    for twin in twins:
        twin.advance(2.0)
    assert twins[0].node_j == twins[1].node_j


@pytest.mark.parametrize("inlet_c", [-41.0, 101.0, float("nan")])
def test_air_that_no_node_takes_in_is_refused(inlet_c: float) -> None:
    twin = Twin(load_machine("curie"))
    with pytest.raises(TwinError, match="give -40 to 100"):
        twin.set_inlet(inlet_c)
    assert twin.inlet_c == 28.0
