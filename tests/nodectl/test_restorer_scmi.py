"""The restorer and SCMI controllers: the real firmware as a process, and on a serial line; Python does the same."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from firmware_bridge.controlpulp.posix import PROGRAM, PosixController
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.domains import find
from nodectl.controller.scmi_knobs import Direct, scmi_knob
from nodectl.knobs import KnobFinder
from nodectl.write.restore import restore_saved
from nodectl.write.saves import Save, read_save
from tests.nodectl.file_tree import file_node
from tests.nodectl.test_restorer import rows, run, sanitized
from tests.scmi.frame_device import PtyDevice
from tests.scmi.patient import patient_client
from twin.pulp.shared_plant import LIBRARY, SharedPlant

if not PROGRAM.exists():
    pytest.skip(f"{PROGRAM} is not built", allow_module_level=True)
if shutil.which("cc") is None:
    pytest.skip("a C compiler is missing: install gcc", allow_module_level=True)

BOOT = "boot-1"
CAP = "package/cap_mw"


@pytest.fixture(scope="module")
def restorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sanitized(tmp_path_factory.mktemp("restorer"))


class Firmware:
    """The controller as a process, with a plant."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._plant = SharedPlant(folder / "plant")
        self.process = PosixController(folder / "scmi", "--fifo", "try", plant=(LIBRARY, self._plant.path))

    @contextlib.contextmanager
    def agent(self, number: int) -> Iterator[Controller]:
        client = patient_client(self.process.url(number))
        try:
            yield Controller(client)
        finally:
            client.close()

    def in_force(self, setting: str) -> int:
        """As the third agent sees it."""
        with self.agent(3) as controller:
            if setting == CAP:
                return controller.cap(controller.cap_domains[0])
            domain = find(controller.speed_domains, setting.split("/")[0], "performance domain")
            return domain.khz(controller.limits(domain)[1]) or 0


@dataclass(frozen=True)
class Case:
    what: str
    setting: str
    status: str
    before: int = 0
    """Of our agent, before the capture; 0: none."""
    ours: int = 150_000
    theirs: int = 0
    """What another agent requests after our write; 0: nothing."""
    limit: int | None = None


CASES = (
    Case("a cap where there was none", CAP, "restored"),
    Case("a cap where there was another", CAP, "restored", before=180_000),
    Case("a cap below another agent's", CAP, "restored", theirs=200_000),
    Case("a cap above another agent's", CAP, "restored", theirs=130_000),
    Case("a cap under a grant, above its limit", CAP, "held", limit=120_000),
    Case("a cap under a grant, below its limit", CAP, "held", limit=160_000),
    Case("a clock limit", "0/limit_khz", "restored", ours=1_500_000),
    Case("a clock limit of somebody else", "0/limit_khz", "left", ours=1_500_000, theirs=1_200_000),
    Case("a level", "0/level_khz", "restored", ours=1_500_000),
)


def killed(firmware: Firmware, case: Case, path: Path) -> str:
    """What a killed run leaves: a value of ours at the controller, and the save. Returns the knob's name."""
    name = f"{firmware.process.url(2)}#{case.setting}"
    with firmware.agent(2) as controller:
        knob = scmi_knob(Direct(controller), name)
        if case.before:
            knob.set(case.before)
        captured = knob.read()
        save = Save(str(path), BOOT, lambda _: knob.recipe())
        save.capture({name: captured})
        save.wrote({name: case.ours})
        if case.limit is not None:
            save.limit_restores({name: case.limit})
        save.close()
        knob.set(case.ours)
    if case.theirs:
        with firmware.agent(3) as controller:
            scmi_knob(Direct(controller), f"{firmware.process.url(3)}#{case.setting}").set(case.theirs)
    return name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_python_and_c_do_the_same_at_a_controller_and_say_the_same(restorer: Path, tmp_path: Path, case: Case) -> None:
    seen: list[tuple[str, str, int, bool]] = []
    for who in ("python", "c"):
        firmware, path = Firmware(tmp_path / who), tmp_path / f"{who}.jsonl"
        try:
            name = killed(firmware, case, path)
            if who == "python":
                with KnobFinder(file_node(tmp_path / "node")) as finder:
                    outcome = restore_saved(str(path), BOOT, finder).outcomes[0]
                status, detail = outcome.status, outcome.detail
            else:
                options = ("--save", path, "--boot", BOOT, "--lock", tmp_path / "lock")
                done = run(restorer, "restore", *options)
                assert done.returncode == 0, done.stdout + done.stderr
                ((named, status, detail),) = rows(done)
                assert named == name
            seen.append((status, detail, firmware.in_force(case.setting), path.exists()))
        finally:
            firmware.process.stop()
    assert seen[0][0] == case.status
    assert seen[0] == seen[1]


def test_a_controller_that_is_away_keeps_its_knob_in_the_save(restorer: Path, tmp_path: Path) -> None:
    firmware, path = Firmware(tmp_path / "there"), tmp_path / "captured.jsonl"
    name = killed(firmware, CASES[0], path)
    firmware.process.stop()
    done = run(restorer, "restore", "--save", path, "--boot", BOOT, "--lock", tmp_path / "lock")
    ((_, status, detail),) = rows(done)
    assert (done.returncode, status) == (1, "vanished") and "scmi+shm:" in detail
    assert list(read_save(str(path)).knobs) == [name]


# --- on a serial line


def garbled(data: bytes) -> bytes:
    return data[:8] + bytes([data[8] ^ 0x40]) + data[9:]


FAULTS: dict[str, list[Callable[[bytes], bytes]]] = {
    "whole": [],
    "the first answer lost": [lambda data: b""],
    "the first answer damaged": [garbled],
    "garbage between answers": [lambda data: b"\xa5\x5a\x03\xff" + data + b"\xa5\x5a"] * 4,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_cap_is_withdrawn_over_a_serial_line(restorer: Path, tmp_path: Path, fault: str) -> None:
    device, path = PtyDevice(), tmp_path / "captured.jsonl"
    try:
        url = f"scmi+serial://{device.path}?baud=921600"
        client = patient_client(url)
        knob = scmi_knob(Direct(Controller(client)), f"{url}#{CAP}")
        captured = knob.read()
        save = Save(str(path), BOOT, lambda _: knob.recipe())
        save.capture({knob.name: captured})
        save.wrote({knob.name: 120_000})
        save.close()
        knob.set(120_000)
        client.close()
        assert captured == "disabled" and device.platform.enforced(0) == 120_000
        device.device.faults.extend(FAULTS[fault])
        done = run(restorer, "restore", "--save", path, "--boot", BOOT, "--lock", tmp_path / "lock")
        assert rows(done) == [[knob.name, "restored", "120000 to disabled"]], done
        assert done.returncode == 0 and device.platform.enforced(0) == 0 and not path.exists()
    finally:
        device.close()
