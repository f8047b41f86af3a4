"""The controller as a process: its sockets, its agents, its time, its end; real processes and real memory."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from firmware_bridge.build_posix import build
from firmware_bridge.controlpulp.posix import PROGRAM, PosixController
from firmware_bridge.errors import HardwareError, LinkError
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.protocols.performance import LevelGet, LevelSet
from firmware_bridge.scmi.protocols.power_capping import CapChanged, CapGet, CapNotify, CapSet
from firmware_bridge.scmi.protocols.sensor import ReadingGet
from firmware_bridge.scmi.protocols.telemetry import REASONS, TelemetryReasons, TelemetryStatus
from firmware_bridge.scmi.transports.url import open_client, open_transport
from tests.firmware.hostile_agent import SANITIZED, attack
from tests.scmi.patient import patient_client
from tests.waiting import PATIENCE_S, within
from twin.pulp.plant import CLASSES
from twin.pulp.shared_plant import LIBRARY, SharedPlant

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="posix-") as name:
        yield Path(name)


@pytest.fixture
def controller(folder: Path) -> Iterator[PosixController]:
    one = PosixController(folder)
    yield one
    one.stop()


def run(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S, **options
    )  # type: ignore[call-overload,no-any-return]


# ---- agents and sockets ----


def test_an_agent_is_the_socket_that_it_connects_to(controller: PosixController) -> None:
    for agent, name in ((3, "bmc"), (1, "ospm"), (2, "runtime")):
        client = patient_client(controller.url(agent))
        identity = Controller(client).identity
        assert (identity.agent, identity.agent_name) == (agent, name)
        client.close()


def test_a_taken_channel_is_refused_and_is_free_again_when_its_agent_leaves(controller: PosixController) -> None:
    first = patient_client(controller.url(1))
    with pytest.raises(LinkError, match="is taken by another client, or this user may not use it"):
        open_transport(controller.url(1))
    first.request(CapSet(0, 0, 120_000))
    first.close()

    def is_free() -> bool:
        try:
            open_transport(controller.url(1)).close()
        except LinkError:
            return False
        return True

    assert within(PATIENCE_S, is_free)
    time.sleep(0.01)
    again = patient_client(controller.url(1))
    assert again.request(CapGet(0)).cap == 120_000, "what is in force does not go with its agent"
    again.close()


def test_sockets_are_private_and_those_of_a_killed_controller_are_replaced(folder: Path) -> None:
    first = PosixController(folder)
    names = {"ospm.sock", "runtime.sock", "bmc.sock"}
    assert {path.name for path in folder.iterdir()} == names
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    with pytest.raises(LinkError, match="another controller serves here"):
        PosixController(folder)
    first.kill()
    assert {path.name for path in folder.iterdir()} == names
    second = PosixController(folder)
    patient_client(second.url(1)).close()
    second.stop()
    assert list(folder.iterdir()) == []


def test_a_file_that_is_no_socket_is_left_alone(folder: Path) -> None:
    (folder / "runtime.sock").write_text("precious")
    with pytest.raises(LinkError, match=r"cannot listen at .*/runtime\.sock: Address already in use"):
        PosixController(folder)
    assert [path.name for path in folder.iterdir()] == ["runtime.sock"]
    assert (folder / "runtime.sock").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_is_refused_even_where_the_socket_lets_it_in(controller: PosixController, folder: Path) -> None:
    folder.chmod(0o755)
    (folder / "ospm.sock").chmod(0o666)
    said = subprocess.run(
        ["python3", "-c", "import socket, sys\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
         "s.connect(sys.argv[1])\nprint(len(s.recv(100)))", str(folder / "ospm.sock")],
        user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert said.stdout == "0\n", said.stderr
    client = patient_client(controller.url(1))
    client.request(CapGet(0))
    client.close()


# ---- mailbox ----


@pytest.mark.parametrize(
    "options",
    [("--registers", "0xA4,0xA0"), ("--areas", "0x400,0"), ("--areas", "0x40,0x1000", "--registers", "0x100,0x180")],
)
def test_areas_and_registers_lie_where_the_options_say(folder: Path, options: tuple[str, ...]) -> None:
    controller = PosixController(folder, *options)
    client = patient_client(controller.url(2))
    assert Controller(client).identity.sub_vendor == "controlpulp"
    client.close()
    controller.stop()


def test_events_wait_until_the_one_before_has_been_read(controller: PosixController) -> None:
    watcher, setter = patient_client(controller.url(1)), patient_client(controller.url(2))
    watcher.request(CapNotify(0, 1))
    caps = [100_000 + 1000 * i for i in range(8)]
    for cap in caps:
        setter.request(CapSet(0, 0, cap))
    seen: list[int] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(seen) < len(caps) and time.monotonic() < deadline_s:
        for message in watcher.wait_for_events(0.05):
            assert isinstance(message.body, CapChanged)
            seen.append(message.body.cap)
    assert seen == caps
    watcher.close()
    setter.close()


def test_caps_and_levels_go_through_fast_channels_and_outlive_the_client(controller: PosixController) -> None:
    """On a busy machine the controller may look too late; then a message is sent, and the next value tried."""
    agent = Controller(patient_client(controller.url(1)))
    package, domain = agent.cap_domains[0], agent.speed_domains[2]
    caps, levels = itertools.cycle((100_000, 90_000)), itertools.cycle((800_000, 1_600_000))
    assert within(PATIENCE_S, lambda: agent.set_cap(package, next(caps), fast=True).is_fast)
    assert within(PATIENCE_S, lambda: agent.set_level(domain, next(levels), fast=True).is_fast)
    cap, level = agent.cap(package), agent.level(domain)
    assert (cap, level) != (0, 3_660_000)
    agent.close()
    time.sleep(0.01)
    again = Controller(patient_client(controller.url(1)))
    time.sleep(0.01)
    assert (again.cap(package), again.level(domain)) == (cap, level), "a fresh window is no request"
    again.close()


def test_the_memory_cannot_change_its_size(controller: PosixController) -> None:
    transport = open_transport(controller.url(1))
    memory = transport._fds.memory  # type: ignore[attr-defined]
    for size in (0, 1 << 16):
        with pytest.raises(PermissionError):
            os.ftruncate(memory, size)
    transport.close()


# ---- time ----


def test_without_a_plant_sensors_cannot_be_read_and_say_so(controller: PosixController) -> None:
    client = patient_client(controller.url(1))
    with pytest.raises(HardwareError):
        client.request(ReadingGet(0, 0))
    client.close()


def test_slots_follow_real_time_and_late_ones_are_counted(controller: PosixController) -> None:
    client = patient_client(controller.url(1))
    earliest_s, before, begin_s = time.monotonic(), client.request(TelemetryStatus()), time.monotonic()
    controller.process.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    controller.process.send_signal(signal.SIGCONT)
    time.sleep(0.2)
    end_s, after, latest_s = time.monotonic(), client.request(TelemetryStatus()), time.monotonic()
    slots, merged = after.slots - before.slots, after.merged_control - before.merged_control
    assert merged >= 0.18 / 500e-6
    assert 0.95 * (end_s - begin_s) < (slots + merged) * 500e-6 < 1.05 * (latest_s - earliest_s)
    client.close()


@pytest.mark.parametrize(("wait", "is_made"), [("1", True), ("0", False)])
def test_the_guard_makes_its_own_steps_as_often_as_the_option_says(folder: Path, wait: str, is_made: bool) -> None:
    chip = folder / "chip"
    SharedPlant(chip).capacitance[:] = CLASSES[2]
    controller = PosixController(folder, "--own-steps", wait, plant=(LIBRARY, chip))
    client = patient_client(controller.url(1))

    def is_in_step() -> bool:
        return bool(client.request(TelemetryReasons(0)).reasons[0] & 1 << REASONS.index("own step"))

    assert within(PATIENCE_S if is_made else 1.5, is_in_step) == is_made
    assert client.request(TelemetryStatus()).slots < 120_000, "65 s are the default"
    client.close()
    controller.stop()


def test_with_the_bypass_a_lower_level_does_not_wait_for_a_slot(folder: Path) -> None:
    controller = PosixController(folder, "--bypass")
    client = patient_client(controller.url(1))

    def has_bypassed() -> bool:
        """A slot must have applied the higher level first; on a busy machine it may come late."""
        for level in (2_000_000, 1_600_000):
            client.request(LevelSet(0, level))
            assert client.request(LevelGet(0)).level == level
            time.sleep(0.01)
        return client.request(TelemetryStatus()).bypasses >= 1

    assert within(PATIENCE_S, has_bypassed)
    client.close()
    controller.stop()


HANGING_PLANT = """
#include <stdint.h>
void *plant_open(const char *state, int32_t *wires[5]);
void plant_advance(void *plant, int64_t now_ns);
static int32_t words[5][36];
static volatile int calls;
void *plant_open(const char *state, int32_t *wires[5])
{
    (void)state;
    for (int w = 0; w < 5; w++)
        wires[w] = words[w];
    return words;
}
void plant_advance(void *plant, int64_t now_ns)
{
    (void)plant, (void)now_ns;
    while (calls++ > 1000)
        calls = 1001;
}
"""


def test_the_watchdog_ends_a_controller_that_hangs(folder: Path) -> None:
    (folder / "plant.c").write_text(HANGING_PLANT)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "plant.so", folder / "plant.c"], check=True)
    controller = PosixController(folder, plant=(folder / "plant.so", folder / "plant.c"))
    assert within(PATIENCE_S, lambda: controller.process.poll() is not None)
    assert controller.process.returncode == -signal.SIGPROF
    controller.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without the right")
def test_without_the_right_to_sched_fifo_it_goes_on_or_ends_as_requested(folder: Path) -> None:
    program = folder / "controlpulp-posix"
    shutil.copy(PROGRAM, program)
    folder.chmod(0o777)
    as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "text": True}
    ended = subprocess.run([program, "--fifo", "require", folder], capture_output=True, timeout=PATIENCE_S, **as_nobody)  # type: ignore[call-overload]
    assert ended.returncode == 1
    expected = "controlpulp-posix: SCHED_FIFO: Operation not permitted (it needs CAP_SYS_NICE or RLIMIT_RTPRIO)"
    assert ended.stderr == f"{expected}\n"
    assert not list(folder.glob("*.sock"))
    going = subprocess.Popen(
        [program, "--fifo", "try", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **as_nobody
    )  # type: ignore[call-overload]
    assert going.stdout.readline() == f"serving {folder}\n"
    going.terminate()
    said = going.communicate(timeout=PATIENCE_S)[1]
    assert going.returncode == 0
    assert said.startswith(f"{expected}; running without it")


# ---- wrong use ----


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "give exactly one FOLDER for the agents' sockets"),
        (("--fast", "/tmp"), "no such option, or its value is missing: --fast"),
        (("--fifo", "maybe", "/tmp"), "--fifo takes try or require, not maybe"),
        (("--registers", "12", "/tmp"), "--registers takes two offsets like 0xA0,0xA4, not 12"),
        (("--registers", "0x1C,0xA4", "/tmp"), "doorbell, completion and the area of 160 bytes overlap"),
        (("--areas", "0,0xA0", "/tmp"), "the two areas overlap"),
        (("--areas", "0,0x102", "/tmp"), "an offset is not a multiple of 4"),
        (("--areas", "0,-1", "/tmp"), "like 0,0x100, not 0,-1"),
        (("--own-steps", "0.05", "/tmp"), "--own-steps takes 0 or 0.1 to 86400 seconds, not 0.05"),
        (("--own-steps", "1s", "/tmp"), "--own-steps takes 0 or 0.1 to 86400 seconds, not 1s"),
        (("--message-only", "scp", "/tmp"), "--message-only takes ospm, runtime or bmc, not scp"),
        (("--plant", "/lib", "/tmp"), "--plant and --state belong together"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(arguments: tuple[str, ...], expected: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert expected in ended.stderr and ended.stderr.count("\n") == 1


def test_what_is_missing_is_one_line_and_status_1(folder: Path) -> None:
    (folder / "state").write_bytes(bytes(100))
    library = PROGRAM.parents[4] / "twin/pulp/libpulp.so"
    for arguments, expected in (
        ((folder / "nowhere",), "nowhere: No such file or directory"),
        (("--plant", folder / "none.so", "--state", folder / "state", folder), "cannot open shared object file"),
        (("--plant", "libm.so.6", "--state", folder / "state", folder), "exports no plant_open and plant_advance"),
        (("--plant", library, "--state", folder / "state", folder), "state: not a plant's state"),
        (("--plant", library, "--state", folder / "none", folder), "none: No such file or directory"),
        ((f"/tmp/{'x' * 120}",), "No such file or directory"),
    ):
        ended = run(*arguments)
        assert ended.returncode == 1, ended
        assert expected in ended.stderr and ended.stderr.count("\n") == 1


def test_a_path_that_is_too_long_for_a_socket_is_an_error(folder: Path) -> None:
    long = folder / ("x" * 100)
    long.mkdir()
    with pytest.raises(LinkError, match="File name too long"):
        PosixController(long)


# ---- hostile clients ----


def test_hostile_clients_neither_upset_it_nor_keep_an_honest_one_from_being_served(folder: Path) -> None:
    """Under the sanitizers, so that a single byte out of bounds ends it; long runs are ``hostile_agent.py``'s."""
    program = build(folder / "controlpulp-posix", *SANITIZED)
    outcome = attack(program, folder / "scmi", seconds=3.0, seed=1)
    assert outcome.returncode == 0, outcome.said
    assert outcome.deeds > 200 and outcome.answers > 20, outcome
    assert outcome.transport_errors > 0, "impossible lengths have reached it"


def test_it_writes_to_no_file_that_an_agent_has_too(controller: PosixController) -> None:
    """A write to an eventfd waits for ever when its agent fills it just then, whatever was checked before."""

    def writes() -> int:
        counts = Path(f"/proc/{controller.process.pid}/io").read_text()
        return int(counts.partition("syscw:")[2].split()[0])

    watcher, actor = (patient_client(controller.url(agent)) for agent in (1, 3))
    watcher.request(CapNotify(0, 1))
    before = writes()
    for cap_mw in range(100_000, 110_000, 500):
        actor.request(CapSet(0, 0, cap_mw))
        assert watcher.wait_for_events(PATIENCE_S)
    for client in (watcher, actor):
        client.close()
    assert writes() == before


# ---- its end, seen from an agent ----


def test_a_controller_that_hangs_or_is_another_thing_is_one_line(folder: Path) -> None:
    controller = PosixController(folder)
    client = open_client(controller.url(1))
    client.request(CapGet(0))
    controller.process.send_signal(signal.SIGSTOP)
    begin_s = time.monotonic()
    with pytest.raises(LinkError, match="has not handed the mailbox back within 60 ms"):
        client.request(CapGet(0))
    with pytest.raises(LinkError, match="no mailbox was passed in 1 s"):
        open_transport(controller.url(2))
    assert time.monotonic() - begin_s < PATIENCE_S
    controller.kill()
    with pytest.raises(LinkError, match="the controller's process has ended"):
        client.request(CapGet(0))
    with pytest.raises(LinkError, match="Connection refused"):
        open_transport(controller.url(2))
    client.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(folder / "stream"))
        other.listen()
        with pytest.raises(LinkError, match="Protocol wrong type"):
            open_transport(f"scmi+shm:{folder / 'stream'}")


def test_it_ends_with_the_process_that_started_it(folder: Path) -> None:
    starter = subprocess.run(
        ["python3", "-c", "import subprocess, sys\n"
         "p = subprocess.Popen([*sys.argv[1:]], stdout=subprocess.PIPE)\np.stdout.readline()\nprint(p.pid)",
         str(PROGRAM), "--with-parent", str(folder)],
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    pid = int(starter.stdout)
    assert within(PATIENCE_S, lambda: not list(folder.glob("*.sock")))
    assert within(PATIENCE_S, lambda: not Path(f"/proc/{pid}/root").exists() or _is_dead(pid))


def _is_dead(pid: int) -> bool:
    try:
        return ") Z" in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
