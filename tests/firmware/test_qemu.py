"""The rv32 image in QEMU's `virt` machine, spoken to over its serial line, in each of the three kinds of time."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serial

from benchmarks.firmware_rig import mixed_load
from firmware_bridge.controlpulp import qemu, rv32
from firmware_bridge.controlpulp.host import HostController
from firmware_bridge.controlpulp.shared_memory import TIME_BY_LINE, TIME_BY_TIMER, TIME_BY_WORD
from firmware_bridge.errors import LinkError, NoAnswerError, RefusedError, WrongDeviceError
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.messages.codec import encode
from firmware_bridge.scmi.protocols.performance import LevelGet, LevelSet
from firmware_bridge.scmi.protocols.power_capping import CapGet, CapSet
from firmware_bridge.scmi.protocols.telemetry import LeaseSet, TelemetryStatus
from firmware_bridge.scmi.transports.lock_step import LockStepLine
from firmware_bridge.scmi.transports.serial_line import POLL_S, SerialLine
from firmware_bridge.scmi.transports.url import open_client, open_transport
from tests.firmware import images
from tests.firmware.seal import HANG, changed
from tests.waiting import PATIENCE_S, within
from twin.pulp.plant import CORES, Plant

pytestmark = pytest.mark.skipif(qemu.missing() is not None, reason=str(qemu.missing()))

SENSORS = ("temperature_mk", "capacitance_ff", "power_uw")
ACTUATORS = ("freq_khz", "volt_mv")
FAST = "discovers or two_slots_after or cut_short or garbage or starts_again"
"""Scenarios that take a few hundred slots: over frames a slot takes some milliseconds."""


@pytest.fixture(scope="module")
def image() -> Path:
    return images.image()


@pytest.fixture
def start(image: Path) -> Iterator[Any]:
    started = []

    def begin(mode: int, other_image: Path | None = None) -> qemu.QemuController:
        started.append(qemu.QemuController(other_image or image, mode))
        return started[-1]

    yield begin
    for one in started:
        one.kill()


def url(controller: qemu.QemuController) -> str:
    return f"scmi+serial://{controller.pty}?baud=921600"


def patient_client(controller: qemu.QemuController) -> Client:
    """What the controller says is tested here, not how soon a busy machine lets QEMU say it."""
    line = SerialLine(serial.Serial(controller.pty, 921600, timeout=POLL_S), "line", reply_timeout_s=PATIENCE_S / 5)
    line.greet()
    return Client(line)


def noisy_plant(seed: int) -> Plant:
    plant = Plant(seed=seed)
    plant.capacitance[:] = mixed_load(seed)
    plant.settle(np.full(CORES, 4.0))
    plant.noise(temperature_k=0.3, power=0.01, capacitance=0.01)
    plant.vary_silicon(seed)
    return plant


def run_beside_the_host(client: Any, slots: int, seed: int, give: Any) -> None:
    """The same sensors and requests, slot by slot: the same clocks and voltages, the same answers."""
    dice, plant, host = random.Random(seed), noisy_plant(seed), HostController()
    plant.wire(host.wires)
    for slot in range(slots):
        if dice.random() < 0.1:
            ask: Any = (
                LevelSet(dice.randrange(5), dice.randrange(300_000, 3_700_000))
                if dice.random() < 0.5
                else CapSet(dice.randrange(5), 0, dice.randrange(10_000, 300_000))
            )
            said = struct.unpack_from("<i", host.exchange(0, encode(ask, 0)), 4)[0]
            with pytest.raises(RefusedError) if said else contextlib.nullcontext():
                client.request(ask)
        plant.advance_to(slot * 500_000)
        now = {name: host.wires[name].copy() for name in SENSORS}
        theirs = give(now)
        host.advance_to(slot * 500_000 + 499_999)
        for name in ACTUATORS:
            assert (theirs[name] == host.wires[name]).all(), f"slot {slot}: {name}"


ILLEGAL = 0x00000000


@pytest.mark.parametrize(("instruction", "mode"), [(HANG, TIME_BY_TIMER), (ILLEGAL, TIME_BY_WORD)])
def test_a_job_that_hangs_or_breaks_off_ends_in_a_restart(
    start: Any, image: Path, tmp_path: Path, instruction: int, mode: int
) -> None:
    """One command of the firmware does so; the others are served as before, with nothing remembered."""
    controller = start(mode, changed(image, tmp_path / "fails.elf", "lease_set", [instruction]))
    client = patient_client(controller)
    client.request(CapSet(0, 0, 100_000))
    assert client.request(CapGet(0)).cap == 100_000
    with pytest.raises(NoAnswerError):
        Client(client.transport, tries=1).request(LeaseSet(0, 0), timeout_s=0.2)
    assert within(PATIENCE_S, lambda: controller.words("restarts")[0] == 1)
    assert patient_client(controller).request(CapGet(0)).cap == 0


def test_code_that_is_damaged_while_it_runs_is_refused_at_the_restart(start: Any, image: Path) -> None:
    controller = start(TIME_BY_WORD)
    client = patient_client(controller)
    controller.code(rv32.symbol(image, "lease_set"))[:] = ILLEGAL
    with pytest.raises(NoAnswerError, match="stray bytes"):
        Client(client.transport, tries=1).request(LeaseSet(0, 0), timeout_s=0.2)
    assert within(PATIENCE_S, lambda: controller.has_refused)
    assert (controller.words("freq_khz") == 400_000).all()


def test_ticks_given_by_a_word_are_decided_as_on_the_host(start: Any) -> None:
    controller = start(TIME_BY_WORD)
    client = patient_client(controller)

    def give(sensors: dict[str, Any]) -> dict[str, Any]:
        for name in SENSORS:
            controller.words(name)[:] = sensors[name]
        controller.give_ticks(4)
        return {name: controller.words(name) for name in ACTUATORS}

    run_beside_the_host(client, 1000, 1, give)
    assert client.request(TelemetryStatus()).slots == 1000
    client.close()


def test_slots_given_by_frames_are_decided_as_on_the_host(start: Any) -> None:
    controller = start(TIME_BY_LINE)
    line = LockStepLine(serial.Serial(controller.pty, 921600, timeout=POLL_S), "line", PATIENCE_S / 5)
    client_line = SerialLine(line, "line", reply_timeout_s=PATIENCE_S / 5)
    client_line.greet()
    client = Client(client_line)
    run_beside_the_host(client, 300, 2, line.slot)
    assert client.request(TelemetryStatus()).slots == 300
    line.reset()
    client_line.greet()
    assert client.request(TelemetryStatus()).slots == 0, "a reset forgets everything"
    line.close()


def test_a_damaged_slot_is_repeated_and_happens_once(start: Any) -> None:
    class Damaging(serial.Serial):  # type: ignore[misc]
        frames = 0

        def write(self, data: bytes) -> Any:
            self.frames += 1
            if self.frames % 3 == 0:
                data = data[:100] + bytes([data[100] ^ 1]) + data[101:]
            return super().write(data)

    controller = start(TIME_BY_LINE)
    line = LockStepLine(Damaging(controller.pty, 921600, timeout=POLL_S), "line", 5.0)
    wires = HostController().wires
    for _ in range(30):
        line.slot(wires)
    line.close()
    client = patient_client(controller)
    assert client.request(TelemetryStatus()).slots == 30
    client.close()


def test_a_controller_whose_time_passes_by_itself_is_used_over_its_pty(start: Any) -> None:
    controller = start(TIME_BY_TIMER)
    client = patient_client(controller)
    view = Controller(client)
    assert view.identity.agent == 1
    assert view.set_cap(view.cap_domains[0], 100_449).enforced == 100_400
    before = client.request(TelemetryStatus()).slots
    assert within(PATIENCE_S, lambda: client.request(TelemetryStatus()).slots > before + 10)
    client.close()


def test_agents_without_the_line_have_mailboxes(start: Any) -> None:
    controller = start(TIME_BY_WORD)
    client = patient_client(controller)
    client.request(LevelSet(1, 2_400_000))
    controller.send(1, encode(LevelSet(1, 2_800_000), 0))
    deadline_s = time.monotonic() + PATIENCE_S
    while (answer := controller.poll(1)) is None and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert answer is not None and answer[4:8] == bytes(4)
    assert client.request(LevelGet(1)).level == 2_750_000, "the highest of the two, rounded down to a listed one"
    client.close()


def test_a_flood_of_hostile_bytes_stops_neither_control_nor_the_conversation_after_it(start: Any) -> None:
    controller = start(TIME_BY_WORD)
    client = patient_client(controller)
    port = client.transport._port  # type: ignore[attr-defined]
    hostile = [b"\xa5\x5a\x03\x01\x04\x00" * 40, bytes(range(256)), b"\xa5\x5a\x03\x00\xff\x00" * 40, os.urandom(200)]
    for i in range(40):
        port.write(hostile[i % 4])
        controller.give_ticks(4)
        port.read(port.in_waiting)
    time.sleep(0.1)
    port.reset_input_buffer()
    assert client.request(TelemetryStatus()).slots == 40
    client.close()


def test_a_killed_controller_is_one_line_at_once(start: Any) -> None:
    controller = start(TIME_BY_TIMER)
    client = open_client(url(controller))
    controller.kill()
    begin_s = time.monotonic()
    with pytest.raises(LinkError, match="the line is lost") as raised:
        client.request(CapGet(0))
    assert time.monotonic() - begin_s < PATIENCE_S
    assert "\n" not in str(raised.value)
    client.close()


def test_another_program_on_the_line_is_recognised_as_the_wrong_device() -> None:
    """QEMU's own monitor, on a pty."""
    other = subprocess.Popen(
        [qemu.PROGRAM, "-M", "none", "-display", "none", "-nodefaults", "-monitor", "pty"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout is not None
        path = other.stdout.readline().split("redirected to ")[1].split()[0]
        held = os.open(path, os.O_RDWR | os.O_NOCTTY)
        begin_s = time.monotonic()
        with pytest.raises(WrongDeviceError, match="no SCMI controller answers"):
            open_transport(f"scmi+serial://{path}")
        assert time.monotonic() - begin_s < PATIENCE_S
        os.close(held)
    finally:
        other.kill()
        other.wait()
        other.stdout.close()


def test_the_scenarios_pass_over_frames_alone(start: Any) -> None:
    """The rig for FPGAs, with QEMU in the FPGA's place: nothing but the line joins the two."""
    controller = start(TIME_BY_LINE)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "hil_tests", "--rig", "fpga", "-k", FAST, "-p", "no:cacheprovider"],
        env={**os.environ, "NODECTL_FPGA": f"{controller.pty}?baud=921600"},
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert "passed" in ran.stdout
