"""A save that was cut short or damaged never passes for a whole one: what is legible is put back, the file is kept."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from nodectl.cli import main
from nodectl.knobs import open_knob
from nodectl.knobs.api import Knob
from nodectl.write.restore import Restoration, restore_saved
from nodectl.write.saves import read_save
from nodectl.write.writer import Writer
from tests.nodectl.file_tree import StillClock, file_node, limit_path, reopen
from tests.nodectl.plain_knob import GONE, PlainKnob

BOOT = "boot-1"
NAMES = [f"{letter}/limit_mw" for letter in "abcd"]


class Killed:
    """Four knobs, moved under a grant by a run that was then killed, and its save."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "captured.jsonl"
        self.knobs = {name: PlainKnob(name=name) for name in NAMES}
        writer = Writer(list(self.knobs.values()), str(self.path), BOOT, StillClock())
        writer.start()
        writer.apply(dict.fromkeys(NAMES[:2], 1000))
        writer.limit_restores({NAMES[2]: 900})
        writer.apply(dict.fromkeys(NAMES, 1100))
        writer.limit_restores({NAMES[2]: 950})
        writer.apply(dict.fromkeys(NAMES, 1200))
        writer.close()
        self.save = self.path.read_bytes()
        self.moved = {name: knob.text for name, knob in self.knobs.items()}

    def restored(self, save: bytes) -> Restoration:
        """A restore from that save; its folder holds nothing else."""
        for left in self.folder.iterdir():
            left.unlink()
        self.path.write_bytes(save)
        for name, knob in self.knobs.items():
            knob.text = self.moved[name]
        return restore_saved(str(self.path), BOOT, self.find)

    def find(self, name: str) -> Knob:
        return self.knobs[name]


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    (tmp_path / "state").mkdir()
    return Killed(tmp_path / "state")


def assert_is_noticed(killed: Killed, save: bytes) -> None:
    result = killed.restored(save)
    assert not result.is_complete
    (kept,) = killed.folder.glob("captured.jsonl.old-*")
    assert kept.read_bytes() == save
    assert sum("kept as" in line or "set aside as" in line for line in result.remarks) == 1
    assert any(str(kept) in line for line in result.remarks)


def test_a_whole_save_is_restored_completely_and_goes(killed: Killed) -> None:
    result = killed.restored(killed.save)
    assert result.is_complete and result.remarks == []
    assert {name: knob.text for name, knob in killed.knobs.items()} == dict.fromkeys(NAMES, "3000") | {NAMES[2]: "950"}
    assert list(read_save(str(killed.path)).knobs) == [NAMES[2]], "under a grant it waits for the leave"


def test_a_save_that_is_cut_short_anywhere_is_kept_and_the_restore_is_not_complete(killed: Killed) -> None:
    assert killed.save.count(b"\n") == 10
    for length in range(len(killed.save)):
        assert_is_noticed(killed, killed.save[:length])


def test_a_changed_byte_anywhere_in_a_save_is_noticed(killed: Killed) -> None:
    for at in range(len(killed.save)):
        damaged = bytearray(killed.save)
        damaged[at] ^= 1 << at % 8
        assert_is_noticed(killed, bytes(damaged))


def lines_of(save: bytes) -> list[bytes]:
    return save.splitlines(keepends=True)


def without(number: int) -> Callable[[bytes], bytes]:
    return lambda save: b"".join(line for at, line in enumerate(lines_of(save)) if at != number)


def written_again(save: bytes, old: bytes, new: bytes) -> bytes:
    """Each line with ``old`` replaced and its checksum right."""
    payloads = (line.split(b" ", 1)[1].rstrip(b"\n").replace(old, new) for line in lines_of(save))
    return b"".join(b"%08x %s\n" % (zlib.crc32(payload), payload) for payload in payloads)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda save: b"",
    "zeros": lambda save: bytes(len(save)),
    "a page of zeros in it": lambda save: save[:512] + bytes(512) + save[1024:],
    "zeros for its end": lambda save: save[: len(save) // 2] + bytes(len(save) - len(save) // 2),
    "without its head": without(0),
    "without a capture": without(2),
    "without the values of a write": without(3),
    "without a grant": without(8),
    "without its last line": without(9),
    "its second half only": lambda save: save[len(save) // 2 :],
    "its first line only": lambda save: lines_of(save)[0],
    "a write of a knob that nothing captured": lambda save: written_again(save, b'"values":{"a/', b'"values":{"z/'),
    "two lines run together": lambda save: save.replace(b"\n", b"", 2).replace(b"\n", b"", 1),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_of_every_kind_is_noticed(killed: Killed, how: str) -> None:
    damaged = DAMAGE[how](killed.save)
    assert damaged != killed.save
    assert_is_noticed(killed, damaged)


def test_what_is_legible_of_a_damaged_save_is_put_back_and_the_rest_waits(killed: Killed) -> None:
    killed.knobs[NAMES[3]].fails["read"] = GONE
    result = killed.restored(without(1)(killed.save))
    assert [(one.knob, one.status) for one in result.outcomes] == [
        (NAMES[3], "vanished"),
        (NAMES[2], "held"),
        (NAMES[1], "restored"),
    ]
    assert [knob.text for knob in killed.knobs.values()] == ["1200", "3000", "950", "1200"]
    left = read_save(str(killed.path))
    assert left.lost == "" and list(left.knobs) == NAMES[2:]
    assert left.knobs[NAMES[2]].restore_limit == 950 and left.knobs[NAMES[3]].ours == (1100, 1200)
    del killed.knobs[NAMES[3]].fails["read"]
    again = restore_saved(str(killed.path), BOOT, killed.find)
    assert again.is_complete and killed.knobs[NAMES[3]].text == "3000"


def test_a_dry_run_says_that_a_save_is_damaged_and_leaves_it(killed: Killed) -> None:
    killed.restored(killed.save)
    damaged = without(9)(killed.save)
    killed.path.write_bytes(damaged)
    result = restore_saved(str(killed.path), BOOT, killed.find, dry_run=True)
    assert not result.is_complete and "it would be kept" in result.remarks[-1]
    assert os.listdir(killed.folder) == ["captured.jsonl"] and killed.path.read_bytes() == damaged


def test_the_command_fails_on_a_damaged_save_and_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = file_node(tmp_path / "node")
    monkeypatch.setattr("nodectl.commands.restore.system_ports", lambda: reopen(node.files))
    path = tmp_path / "captured.jsonl"
    path.write_bytes(b"")
    assert main(["restore", "--state-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"{path} has no readable line: set aside as {path}.old-1\n"
    assert main(["restore", "--state-dir", str(tmp_path)]) == 0
    assert "nothing to restore" in capsys.readouterr().out


OLD = """\
{"kind":"capture","v":1,"boot":"boot-1","knob":"cpu/policy0/max_khz","value":"3200000"}
{"kind":"capture","v":1,"boot":"boot-1","knob":"cpu/policy1/max_khz","value":"3200000"}
{"kind":"wrote","v":1,"boot":"boot-1","values":{"cpu/policy0/max_khz":1200000,"cpu/policy1/max_khz":1200000}}
"""


def old_save(path: Path, *numbers: int) -> None:
    """A save as version 1 wrote it; without the lines of these numbers."""
    kept = (line.encode() for number, line in enumerate(OLD.splitlines()) if number not in numbers)
    path.write_bytes(b"".join(b"%08x %s\n" % (zlib.crc32(line), line) for line in kept))


def test_an_upgrade_while_a_knob_is_moved_restores_from_the_save_of_the_version_before(tmp_path: Path) -> None:
    node, path = file_node(tmp_path / "node"), tmp_path / "captured.jsonl"
    old_save(path)
    for policy in (0, 1):
        node.files.put(limit_path(policy), 1_200_000)
    node.files.refusals[limit_path(1)] = 16
    result = restore_saved(str(path), BOOT, lambda name: open_knob(node, name))
    assert [outcome.status for outcome in result.outcomes] == ["refused", "restored"]
    left = read_save(str(path))
    assert (left.version, left.lost, left.knobs["cpu/policy1/max_khz"].ours) == (2, "", (1_200_000,))
    assert left.knobs["cpu/policy1/max_khz"].recipe is not None, "the restorer can follow it now"
    node.files.refusals.clear()
    assert restore_saved(str(path), BOOT, lambda name: open_knob(node, name)).is_complete
    assert [node.files.read(limit_path(policy)) for policy in (0, 1)] == ["3200000\n"] * 2
    assert not path.exists()


@pytest.mark.parametrize("number", [0, 1])
def test_a_save_of_the_version_before_that_lacks_a_capture_is_noticed(tmp_path: Path, number: int) -> None:
    node, path = file_node(tmp_path / "node"), tmp_path / "captured.jsonl"
    old_save(path, number)
    result = restore_saved(str(path), BOOT, lambda name: open_knob(node, name))
    assert not result.is_complete and f"cpu/policy{number}/max_khz was written, and nothing says" in result.remarks[-1]
    assert sorted(os.listdir(tmp_path)) == ["captured.jsonl.old-1", "node"]
