"""The save belongs to the node: whoever comes next finds it, whatever its state directory."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from foundation.boot import boot_id
from nodectl.cli import main
from nodectl.knobs import open_knob
from nodectl.knobs.api import Knob
from nodectl.write.generation import Generation
from nodectl.write.lock import LOCK_FD, LockError, NodeLock
from nodectl.write.places import LASTING_BOOT, SavePlaces, open_save, save_places
from nodectl.write.restore import left_behind, read_node, restore_node
from nodectl.write.saves import Captured, Save, SaveError, node_id, read_save
from nodectl.write.writer import Writer
from pmu.ports import Ports
from tests.nodectl.file_tree import MAX_KHZ, StillClock, file_node, limit_path, reopen
from tests.nodectl.plain_knob import GONE, PlainKnob
from tests.waiting import PATIENCE_S, within

NAME = "cpu/policy0/max_khz"

AGENT = """
import dataclasses, sys, time
from nodectl.knobs import open_knob
from nodectl.write.lock import NodeLock
from nodectl.write.places import save_places
from nodectl.write.saves import node_id
from nodectl.write.writer import Writer
from tests.nodectl.file_tree import RealClock, RootedFiles, reopen
root, state_dir, lock = sys.argv[1:]
node = reopen(RootedFiles(root))
taken = NodeLock(state_dir, lock)
taken.acquire()
knob = open_knob(node, "cpu/policy0/max_khz")
writer = Writer([knob], save_places(state_dir, lock), node_id(lock), RealClock(), taken.is_current)
writer.start()
step = 0
while True:
    step += 1
    for outcome in writer.apply({"cpu/policy0/max_khz": 1_200_000 + 1000 * (step % 500)}):
        print(outcome.status, flush=True)
"""


class Node:
    """A node of files with a lock, as a served one has."""

    def __init__(self, folder: Path) -> None:
        self.lock = str(folder / "run" / "lock-emulated")
        self.save = folder / "run" / "captured-emulated.jsonl"
        self.ports: Ports = dataclasses.replace(file_node(folder / "node"), lock_path=self.lock)

    @property
    def khz(self) -> int:
        return int(self.ports.files.read(limit_path(0)))

    def agent(self, state_dir: str) -> subprocess.Popen[str]:
        """A real process that keeps moving the clock."""
        command = [sys.executable, "-c", AGENT, str(self.ports.files.root), state_dir, self.lock]
        process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
        assert process.stdout and process.stdout.readline() == "written\n"
        return process

    def killed(self, state_dir: str) -> None:
        """What that agent leaves after SIGKILL."""
        with self.agent(state_dir) as process:
            process.kill()
        assert self.khz < MAX_KHZ


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(tmp_path)
    again = dataclasses.replace(reopen(node.ports.files), lock_path=node.lock)
    monkeypatch.setattr("nodectl.commands.restore.system_ports", lambda: again)
    return node


def test_a_restore_finds_what_an_agent_with_another_state_directory_left_moved(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node.killed(str(tmp_path / "theirs"))
    left = left_behind(str(tmp_path / "ours"), node_id(node.lock), node.lock)
    assert left == "a killed run has left 1 knob moved: `nodectl restore` puts them back"
    assert main(["restore", "--state-dir", str(tmp_path / "ours")]) == 0
    assert f"to {MAX_KHZ}" in capsys.readouterr().out
    assert node.khz == MAX_KHZ and not node.save.exists()
    assert main(["restore", "--state-dir", str(tmp_path / "ours")]) == 0
    assert "nothing to restore" in capsys.readouterr().out


def test_the_next_agent_never_captures_a_lowered_value_as_original(node: Node, tmp_path: Path) -> None:
    node.killed(str(tmp_path / "theirs"))
    node.ports.files.refusals[limit_path(0)] = 16  # busy: it cannot be put back now
    knob = open_knob(node.ports, NAME)
    writer = Writer([knob], save_places(str(tmp_path / "ours"), node.lock), node_id(node.lock), node.ports.clock)
    assert [one.status for one in writer.start().outcomes] == ["refused"]
    node.ports.files.refusals.clear()
    assert writer.apply({NAME: 1_900_000})[0].status == "written"
    assert read_save(str(node.save)).knobs[NAME].value == str(MAX_KHZ)
    writer.restore_all()
    writer.close()
    assert node.khz == MAX_KHZ


def test_a_save_of_the_version_before_in_the_state_directory_is_still_found(node: Node, tmp_path: Path) -> None:
    state = tmp_path / "state"
    save = Save(str(state / "captured.jsonl"), node_id(node.lock))
    save.capture({NAME: str(MAX_KHZ)})
    save.wrote({NAME: 1_200_000})
    save.close()
    node.ports.files.put(limit_path(0), 1_200_000)
    assert "1 knob moved: `nodectl restore --state-dir" in left_behind(str(state), node_id(node.lock), node.lock)
    node.ports.files.refusals[limit_path(0)] = 16
    assert main(["restore", "--state-dir", str(state)]) == 1
    assert not (state / "captured.jsonl").exists() and list(read_save(str(node.save)).knobs) == [NAME]
    node.ports.files.refusals.clear()
    assert main(["restore", "--state-dir", str(tmp_path / "another")]) == 0
    assert node.khz == MAX_KHZ


def test_the_older_capture_is_the_original(tmp_path: Path) -> None:
    places = SavePlaces(str(tmp_path / "node"), earlier=str(tmp_path / "earlier"))
    for path, value in ((places.earlier, "3000"), (places.node, "1000")):
        save = Save(path, "boot-1")
        save.capture({"a/limit_mw": value, f"{path}/only": value})
        save.wrote({"a/limit_mw": int(value) - 500})
        save.close()
    gone = PlainKnob(fails={"read": GONE})
    assert not restore_node(places, "boot-1", lambda _: gone).is_complete
    assert read_save(places.node).knobs["a/limit_mw"] == Captured("3000", (500,))
    assert len(read_save(places.node).knobs) == 3 and os.listdir(tmp_path) == ["node"]


def test_the_real_node_has_its_save_in_run_and_that_of_its_controllers_where_a_boot_keeps_it() -> None:
    places = save_places("/home/me", "/run/nodectl/lock")
    assert places == SavePlaces(
        "/run/nodectl/captured.jsonl", "/var/lib/nodectl/captured-controllers.jsonl", "/home/me/captured.jsonl"
    )
    assert save_places("/home/me", "/run/nodectl/lock-fuse-0:40").node == "/run/nodectl/captured-fuse-0:40.jsonl"
    assert save_places("/home/me", "") == SavePlaces("/home/me/captured.jsonl")


CAP = "scmi+shm:/run/scmi.sock#package/cap_mw"


def split(tmp_path: Path) -> SavePlaces:
    return SavePlaces(str(tmp_path / "run" / "captured.jsonl"), str(tmp_path / "var" / "captured-controllers.jsonl"))


def run_on(places: SavePlaces, knobs: dict[str, PlainKnob], boot: str) -> Writer:
    writer = Writer(list(knobs.values()), places, boot, StillClock())
    writer.start()
    return writer


def test_a_controllers_knob_is_put_back_after_a_boot_too(tmp_path: Path) -> None:
    places, knobs = split(tmp_path), {name: PlainKnob(name=name) for name in ("a/limit_mw", CAP)}
    writer = run_on(places, knobs, "boot-1")
    writer.apply(dict.fromkeys(knobs, 1200))
    writer.limit_restores({CAP: 900})
    writer.close()
    assert list(read_save(places.node).knobs) == ["a/limit_mw"] and list(read_save(places.lasting).knobs) == [CAP]
    assert read_save(places.lasting).boot_id == LASTING_BOOT
    os.unlink(places.node)  # a boot empties /run, and the first knob's hardware has forgotten its setting
    knobs["a/limit_mw"].text = "3000"
    again = run_on(places, knobs, "boot-2")
    assert knobs[CAP].text == "900" and again.captured == {CAP: "3000"} and again.restore_limits == {CAP: 900}
    again.limit_restores({})
    again.restore_all()
    again.close()
    assert knobs[CAP].text == "3000" and not any(os.path.exists(path) for path, _ in places.with_boots(""))


def test_a_save_of_another_boot_says_nothing_of_the_knobs_as_they_are_now(tmp_path: Path) -> None:
    places, knobs = split(tmp_path), {name: PlainKnob(name=name) for name in ("a/limit_mw", CAP)}
    run_on(places, knobs, "boot-1").apply(dict.fromkeys(knobs, 1200))
    assert set(read_node(places, "boot-1").knobs) == set(knobs)
    assert list(read_node(places, "boot-2").knobs) == [CAP], "a controller keeps what it was given"


def test_both_saves_of_a_run_are_written_again_and_removed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodectl.write.saves.COMPACT_BYTES", 2_000)
    places, knobs = split(tmp_path), {name: PlainKnob(name=name) for name in ("a/limit_mw", CAP)}
    writer = run_on(places, knobs, "boot-1")
    for step in range(60):
        writer.apply(dict.fromkeys(knobs, 1200 + step))
    assert all(os.path.getsize(path) < 4_000 for path in (places.node, places.lasting))
    state = read_node(places, "boot-1")
    assert {name: knob.ours for name, knob in state.knobs.items()} == dict.fromkeys(knobs, (1258, 1259))
    assert [one.status for one in writer.restore(["a/limit_mw"])] == ["restored"]
    assert list(read_node(places, "boot-1").knobs) == [CAP]
    writer.restore_all()
    assert [knob.text for knob in knobs.values()] == ["3000", "3000"]
    assert not os.path.exists(places.node) and not os.path.exists(places.lasting)
    open_save(places, "boot-1", lambda _: None).remove()


# --- generations


def test_a_writer_that_was_stopped_while_somebody_took_the_node_writes_nothing_any_more(
    node: Node, tmp_path: Path
) -> None:
    with node.agent(str(tmp_path / "state")) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        taken = Generation(f"{node.lock}.generation")
        taken.begin()
        node.ports.files.put(limit_path(0), 3_100_000)
        process.send_signal(signal.SIGCONT)
        assert process.stdout
        out = process.stdout
        assert within(PATIENCE_S, lambda: out.readline() == "refused\n")
        assert node.khz in (3_100_000, *range(1_200_000, 1_700_000, 1000)), "one write may be in flight, none follows"
        node.ports.files.put(limit_path(0), 3_100_000)
        for _ in range(5):
            assert out.readline() == "refused\n"
        assert node.khz == 3_100_000
        process.kill()


def test_a_writer_whose_node_was_taken_restores_nothing_either(tmp_path: Path) -> None:
    lock, knob = NodeLock(str(tmp_path / "state"), str(tmp_path / "run" / "lock")), PlainKnob()
    lock.acquire()
    is_looked_at: list[Callable[[], bool]] = [lock.is_current]
    writer = Writer([knob], str(tmp_path / "save"), "boot-1", StillClock(), is_looked_at[0])
    writer.start()
    assert [one.status for one in writer.apply({knob.name: 1200})] == ["written"]
    Generation(str(tmp_path / "run" / "lock.generation")).begin()
    assert [one.status for one in writer.apply({knob.name: 1100})] == ["refused"]
    assert writer.restore_all() == [] and knob.text == "1200"
    before = Path(tmp_path / "save").read_bytes()
    with pytest.raises(SaveError, match="another process has put this node's knobs back"):
        writer.limit_restores({knob.name: 900})
    assert Path(tmp_path / "save").read_bytes() == before
    lock.release()


def test_each_that_takes_the_node_has_a_generation_of_its_own(tmp_path: Path) -> None:
    path = str(tmp_path / "lock.generation")
    first, second = Generation(path), Generation(path)
    assert first.is_mine(), "before it has begun nothing is known of others"
    first.begin()
    assert first.is_mine()
    second.begin()
    assert second.is_mine() and not first.is_mine()
    before = Path(path).read_bytes()
    first.renew(1.0)
    first.end()
    assert Path(path).read_bytes() == before, "who has lost the node claims nothing"
    second.renew(1.0)
    until_ns = int.from_bytes(Path(path).read_bytes()[16:], "little")
    assert 0 < until_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME) <= 1_000_000_000
    second.end()
    second.end()
    assert Path(path).read_bytes()[16:] == bytes(8)
    Path(path).write_bytes(b"garbage")
    second.begin()
    assert Path(path).stat().st_size == 24


def test_a_lock_that_was_passed_on_is_taken_by_the_child_and_stays_the_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "run" / "lock")
    parent = NodeLock(str(tmp_path / "a"), path)
    parent.acquire()
    with pytest.raises(LockError):
        NodeLock(str(tmp_path / "b"), path).acquire()
    monkeypatch.setenv(LOCK_FD, str(parent._locks[0]._fd))
    child = NodeLock(str(tmp_path / "b"), path)
    child.acquire()
    assert child.is_current() and not parent.is_current()
    child.release()
    monkeypatch.setenv(LOCK_FD, "999999")
    with pytest.raises(LockError, match=rf"^pid {os.getpid()} already runs this node"):
        NodeLock(str(tmp_path / "b"), path).acquire()
    parent.release()


def find_plain(_: str) -> Knob:
    return PlainKnob()


def test_a_clock_limit_below_the_hardwares_without_a_known_reason_is_reported(tmp_path: Path) -> None:
    node = file_node(tmp_path)
    knobs = [open_knob(node, f"cpu/policy{policy}/max_khz") for policy in range(4)]
    for policy in range(4):
        node.files.put(limit_path(policy).replace("scaling_max_freq", "cpuinfo_max_freq"), MAX_KHZ)

    def remarks() -> list[str]:
        return Writer(knobs, str(tmp_path / "captured.jsonl"), "boot", node.clock).start().remarks

    assert remarks() == []
    for policy in (0, 1, 3):
        node.files.put(limit_path(policy), 1_200_000)
    node.files.put(limit_path(1), 1_100_000)
    node.files.put(limit_path(1).replace("scaling_max_freq", "bios_limit"), 1_100_000)
    assert remarks() == [
        "cpu/policy0/max_khz and 1 more: found below what the hardware can do (1200000 kHz of 3200000 kHz), and no"
        " reason is known: an administrator's limit, or what a run left whose save is lost; it counts as the"
        " highest allowed"
    ]


def test_a_start_reads_each_limit_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, seen = file_node(tmp_path), []
    knobs = [open_knob(node, f"cpu/policy{policy}/max_khz") for policy in range(4)]
    read = type(node.files).read
    monkeypatch.setattr(type(node.files), "read", lambda files, path: seen.append(path) or read(files, path))
    Writer(knobs, str(tmp_path / "captured.jsonl"), "boot", node.clock).start()
    assert sorted(path for path in seen if "max_freq" in path and "cpuinfo" not in path) == [
        limit_path(policy) for policy in range(4)
    ]


def test_a_node_without_a_lock_has_its_save_in_the_state_directory(tmp_path: Path) -> None:
    assert restore_node(save_places(str(tmp_path), ""), boot_id(), find_plain).outcomes == []
    assert os.listdir(tmp_path) == []
