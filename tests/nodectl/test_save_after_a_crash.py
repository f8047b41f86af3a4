"""The save after a crash at any point: killed, or the machine down and all lost that was not synced.

A run of the real writer is recorded, every operation on the disk and every move of a knob in order. Then each point of
the record is taken for the last one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from foundation import directories
from nodectl.knobs.api import Outcome, WholeNumber
from nodectl.write import saves
from nodectl.write.restore import restore_saved
from nodectl.write.saves import SaveError, read_save
from nodectl.write.writer import Writer
from tests.crashing_disk import Create, Disk, Mark, RecordedOs, Sync, Tree, Write, put
from tests.nodectl.file_tree import StillClock

BOOT = "boot-1"
ORIGINAL = {"a": 3000, "b": 3100, "c": 3200}
SAVE = "state/captured.jsonl"
TICKS = 3


class Hardware:
    """Three limits. Every move is a mark in the record."""

    def __init__(self, disk: RecordedOs, values: dict[str, int] | None = None) -> None:
        self.disk, self.values = disk, dict(values or ORIGINAL)
        self.knobs = {name: Limit(self, name) for name in ORIGINAL}

    def find(self, name: str) -> Limit:
        return self.knobs[name]


class Limit(WholeNumber):
    """A knob (``nodectl.knobs.api.Knob``) of the emulated hardware."""

    unit, latency_s = "mw", 0.1

    def __init__(self, hardware: Hardware, name: str) -> None:
        self.name, self._hardware = name, hardware

    def read(self) -> str:
        return str(self._hardware.values[self.name])

    def set(self, value: int) -> None:
        self._hardware.values[self.name] = value
        self._hardware.disk.mark("moved", (self.name, value))

    def restore(self, captured: str) -> None:
        self.set(int(captured))

    def read_back(self) -> int:
        return self._hardware.values[self.name]

    def matches(self, asked: int, held: int) -> bool:
        return asked == held

    def overruled(self, value: int) -> tuple[str, str]:
        return "", ""

    def explain(self, asked: int, held: int | None) -> tuple[str, str]:
        return "", ""


@contextlib.contextmanager
def recorded() -> Iterator[RecordedOs]:
    """Saves are written through the recorder."""
    disk, patch = RecordedOs(), pytest.MonkeyPatch()
    patch.setattr(saves, "os", disk)
    patch.setattr(directories, "os", disk)
    patch.setattr(saves, "open_safely", disk.open)
    patch.setattr(saves, "open_new", disk.open_new)
    try:
        yield disk
    finally:
        patch.undo()


def writer_for(hardware: Hardware, root: Path) -> Writer:
    return Writer(list(hardware.knobs.values()), str(root / SAVE), BOOT, StillClock())  # type: ignore[arg-type]


def a_short_run(hardware: Hardware, root: Path) -> None:
    """Two knobs, one of them under a grant; killed."""
    writer = writer_for(hardware, root)
    writer.start()
    writer.apply({"a": 1000})
    for tick in range(TICKS):
        with contextlib.suppress(SaveError):  # the disk may be full; the next tick tries again
            hold(writer, {"b": 900})
        writer.apply({"a": 1100 + tick, "b": 1200 + tick})
    hardware.disk.is_full = range(0)
    writer.apply({"a": 1100 + TICKS, "b": 1200 + TICKS})
    writer.close()


def hold(writer: Writer, values: dict[str, int]) -> None:
    writer.limit_restores(values)
    writer._settings["a"].knob._hardware.disk.mark("holds", values)  # type: ignore[attr-defined]


def a_long_run(hardware: Hardware, root: Path) -> None:
    """What a run can do to its save: new and grown files, knobs put back and captured again, grants, leave, the file
    compacted, its end; and a second run, which is killed under a grant."""
    with writer_for(hardware, root) as writer:
        writer.apply({"a": 1000, "b": 1100})
        hold(writer, {"b": 900, "c": 950})
        writer.apply({"a": 1010, "b": 1000, "c": 1200})
        writer.restore(["a"])
        for step in range(6):
            writer.apply({"a": 1020 + step, "b": 1030 - step, "c": 1040 + step})
        hold(writer, {"b": 800, "c": 850})
        writer.apply({"b": 1005})
        hold(writer, {})
        writer.apply({"a": 1001, "c": 1002})
    second = writer_for(hardware, root)
    second.start()
    hold(second, {"a": 700, "b": 1500})
    second.apply({"a": 1200, "b": 1300})
    second.close()


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saves, "COMPACT_BYTES", 900)


class Point:
    """The record up to some operation: the disk, the knobs, and which grants are in force (those of a ``hold`` that has
    returned, and of one that has not)."""

    def __init__(self, root: Path, disk: RecordedOs, end: int) -> None:
        self.disk, self.values, self.restore_limits = Disk(root), dict(ORIGINAL), [dict[str, int]()]
        self.path = str(root / SAVE)
        for one in disk.operations[:end]:
            self.disk.saw(one)
            if isinstance(one, Mark) and one.what == "moved":
                self.values |= dict([one.value])
            elif isinstance(one, Mark):
                self.restore_limits = [one.value]
        is_next = (one.value for one in disk.operations[end:] if isinstance(one, Mark) and one.what == "holds")
        self.restore_limits.append(next(is_next, self.restore_limits[0]))

    def moved(self) -> dict[str, int]:
        return {name: value for name, value in self.values.items() if value != ORIGINAL[name]}

    def check(self, tree: Tree) -> None:
        """A knob that has moved can be put back to what it was; the grant that is in force is known."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(saves, "_bytes_of", lambda path: in_tree(tree, path))
            state = read_save(self.path)
        for name in self.moved():
            assert name in state.knobs, f"nothing says what {name} was"
            assert state.knobs[name].value == str(ORIGINAL[name])
            assert state.knobs[name].restore_limit in {held.get(name) for held in self.restore_limits}


def in_tree(tree: Tree, path: str) -> bytes:
    if path not in tree:
        raise FileNotFoundError(2, os.strerror(2), path)
    return tree[path]


def points(root: Path, disk: RecordedOs) -> Iterator[Point]:
    """Those at which a crash can leave what it cannot leave at the one after it: a sync narrows what may be lost, a
    mark moves what must be there."""
    for end in range(len(disk.operations) + 1):
        if end == len(disk.operations) or isinstance(disk.operations[end], Sync | Mark):
            yield Point(root, disk, end)


@pytest.mark.usefixtures("small_files")
def test_whatever_a_crash_leaves_of_the_save_has_what_every_moved_knob_was(tmp_path: Path) -> None:
    with recorded() as disk:
        a_long_run(Hardware(disk), tmp_path)
    kinds = {type(one).__name__ for one in disk.operations}
    assert kinds == {"MakeDirectory", "Create", "Write", "Sync", "Rename", "Unlink", "Mark"}, "the run does all of it"
    n = 0
    for point in points(tmp_path, disk):
        for tree in point.disk.after_crash():
            point.check(tree)
            n += 1
    assert n > 1000


@pytest.mark.parametrize("lasts", [1, 2, 3])
def test_so_it_does_where_the_disk_was_full_for_any_operations_in_a_row(tmp_path: Path, lasts: int) -> None:
    begin, n = 0, 1
    while begin < n:
        root = tmp_path / str(begin)
        root.mkdir()
        with recorded() as disk:
            disk.is_full = range(begin, begin + lasts)
            hardware = Hardware(disk)
            a_short_run(hardware, root)
        n = disk.tries
        assert hardware.values["a"] == 1100 + TICKS and hardware.values["b"] == 1200 + TICKS, "it is tried again"
        for point in points(root, disk):
            for tree in point.disk.after_crash():
                point.check(tree)
        begin += 1
    assert n > 10


def lay(tree: Tree, root: Path) -> None:
    """The tree is what is there now."""
    shutil.rmtree(root / "state", ignore_errors=True)
    put(tree, Path("/"))


def restored(
    root: Path, disk: RecordedOs, values: dict[str, int], leaves: bool = True
) -> tuple[Hardware, list[Outcome]]:
    hardware = Hardware(disk, values)
    done = restore_saved(str(root / SAVE), BOOT, hardware.find, leaves_cluster=leaves)  # type: ignore[arg-type]
    assert done.is_complete, done
    return hardware, done.outcomes


def is_of_head(write: Write) -> bool:
    """The first line is replaced in place: some tens of bytes of one page, which no signal interrupts (Linux,
    mm/filemap.c, generic_perform_write)."""
    return write.at == 0


def killed(root: Path, disk: RecordedOs) -> Iterator[tuple[Point, Tree]]:
    """The process died: before an operation, or in the middle of a write."""
    for end in range(len(disk.operations) + 1):
        point = Point(root, disk, end)
        yield point, point.disk.as_it_is()
        if end < len(disk.operations) and isinstance(write := disk.operations[end], Write) and not is_of_head(write):
            for cut in (1, len(write.data) // 2, len(write.data) - 1):
                begun = Point(root, disk, end)
                begun.disk.saw(Write(write.path, write.at, write.data[:cut]))
                yield begun, begun.disk.as_it_is()


@pytest.mark.usefixtures("small_files")
def test_after_a_kill_at_any_point_a_restore_puts_every_knob_back_and_a_second_one_does_nothing(tmp_path: Path) -> None:
    with recorded() as disk:
        a_long_run(Hardware(disk), tmp_path)
    for point, tree in killed(tmp_path, disk):
        lay(tree, tmp_path)
        with recorded() as again:
            hardware, _ = restored(tmp_path, again, point.values)
            assert hardware.values == ORIGINAL
            assert not (tmp_path / SAVE).exists()
            moves = len(again.operations)
            restored(tmp_path, again, hardware.values)
            assert len(again.operations) == moves


@pytest.mark.usefixtures("small_files")
def test_after_a_kill_at_any_point_a_restore_raises_no_knob_above_its_grant(tmp_path: Path) -> None:
    with recorded() as disk:
        a_long_run(Hardware(disk), tmp_path)
    n_held = 0
    for point, tree in killed(tmp_path, disk):
        lay(tree, tmp_path)
        with recorded() as again:
            for _ in range(2):
                hardware, outcomes = restored(tmp_path, again, point.values, leaves=False)
                for outcome in outcomes:
                    before = point.values[outcome.knob]
                    holds = {held[outcome.knob] for held in point.restore_limits if outcome.knob in held}
                    n_held += outcome.status == "held"
                    assert (outcome.status == "held") <= bool(holds)
                    assert hardware.values[outcome.knob] in {min(before, hold) for hold in holds} | (
                        {ORIGINAL[outcome.knob]} if len(holds) < len(point.restore_limits) else set()
                    )
                point.values = hardware.values
    assert n_held > 50


@pytest.mark.usefixtures("small_files")
def test_a_restore_that_is_interrupted_at_any_point_can_be_repeated(tmp_path: Path) -> None:
    """Killed, or the machine down with what the restore itself had not synced."""
    with recorded() as disk:
        a_long_run(Hardware(disk), tmp_path)
    n = 0
    for end in (at for at, one in enumerate(disk.operations) if isinstance(one, Mark)):
        point = Point(tmp_path, disk, end + 1)
        lay(point.disk.as_it_is(), tmp_path)
        with recorded() as first:
            restored(tmp_path, first, point.values)
        point.disk.sync_all()
        for one in first.operations:
            point.disk.saw(one)
            if isinstance(one, Mark):
                point.values |= dict([one.value])
            for tree in [point.disk.as_it_is(), *point.disk.after_crash()]:
                lay(tree, tmp_path)
                with recorded() as again:
                    assert restored(tmp_path, again, point.values)[0].values == ORIGINAL
                n += 1
    assert n > 100


def test_a_knob_that_a_restore_has_put_to_its_safe_value_comes_back_whatever_grants_follow(tmp_path: Path) -> None:
    """The next runs' grants have other safe values, and these runs are killed before they write it."""
    with recorded() as disk:
        hardware = Hardware(disk)
        killed_under = [
            ({"b": 900, "c": 950}, {"b": 1200, "c": 1300}),
            ({"b": 940, "c": 940}, {}),
            ({"b": 990}, {}),
            ({}, {}),
        ]
        for holds, wanted in killed_under:
            writer = writer_for(hardware, tmp_path)
            writer.start()
            writer.limit_restores(holds)
            writer.apply(wanted)
            writer.close()
        assert restored(tmp_path, disk, hardware.values, leaves=False)[0].values == ORIGINAL


def test_grants_that_change_while_nothing_is_written_do_not_make_a_value_of_ours_somebody_elses(tmp_path: Path) -> None:
    with recorded() as disk:
        hardware = Hardware(disk)
        with writer_for(hardware, tmp_path) as writer:
            for cap in range(5):
                writer.limit_restores({"b": 900 + cap})
                writer.apply({"b": 1200})
            writer.limit_restores({})
        assert hardware.values == ORIGINAL


def test_a_save_of_another_boot_is_whole_under_its_old_name_or_its_new_one_after_a_crash(tmp_path: Path) -> None:
    with recorded() as disk:
        a_short_run(Hardware(disk), tmp_path)
        before = (tmp_path / SAVE).read_bytes()
        begin = len(disk.operations)
        disk.operations.append(Sync(str(tmp_path / SAVE)))
        restore_saved(str(tmp_path / SAVE), "boot-2", Hardware(disk).find)  # type: ignore[arg-type]
    assert len(disk.operations) > begin + 1
    for end in range(begin + 1, len(disk.operations) + 1):
        for tree in Point(tmp_path, disk, end).disk.after_crash():
            assert list(tree.values()) == [before]


def test_a_save_that_was_removed_does_not_come_back_with_a_crash(tmp_path: Path) -> None:
    with recorded() as disk, writer_for(Hardware(disk), tmp_path) as writer:
        writer.apply({"a": 1000})
    assert list(Point(tmp_path, disk, len(disk.operations)).disk.after_crash()) == [{}]


def test_the_names_of_all_new_directories_are_on_the_disk(tmp_path: Path) -> None:
    with recorded() as disk:
        directories.make_directory(str(tmp_path / "several" / "levels" / "down"))
    left = Disk(tmp_path)
    for one in disk.operations:
        left.saw(one)
    left.saw(Create(str(tmp_path / "several" / "levels" / "down" / "file")))
    left.saw(Sync(str(tmp_path / "several" / "levels" / "down")))
    assert len(list(left.after_crash())) == 1
