"""The save's rules one by one: what shows damage, how lines are counted and numbered, what replaces what."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from foundation.directories import make_directory, make_shared_directory
from nodectl.knobs.recipe import FileRecipe
from nodectl.write import saves
from nodectl.write.saves import Captured, Save, SavedState, SaveError, keep, read_save, set_aside
from tests.open_files import n_open

BOOT = "boot-1"
WHY = "the save of what the knobs were"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "save")


@pytest.fixture
def no_file_stays_open() -> Iterator[None]:
    before = n_open()
    yield
    assert n_open() <= before


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced, in order."""
    names = list[str]()
    monkeypatch.setattr(os, "fsync", lambda fd: names.append(os.readlink(f"/proc/self/fd/{fd}")))
    return names


def recipe_of(knob: str) -> FileRecipe:
    return FileRecipe(f"/sys/{knob}")


def written(path: str) -> Save:
    """Four lines after the head: two captures, a write of both, a grant. Closed."""
    save = Save(path, BOOT, recipe_of)
    save.capture({"a": "3000", "b": "3100"})
    save.wrote({"a": 1000, "b": 1100})
    save.limit_restores({"b": 900})
    save.close()
    return save


def lines_of(path: str) -> list[bytes]:
    return Path(path).read_bytes().splitlines(keepends=True)


def put_lines(path: str, lines: list[bytes]) -> None:
    Path(path).write_bytes(b"".join(lines))


def line(payload: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(payload), payload)


def numbers(path: str) -> list[int]:
    """The head's count, then the number of each line that is legible."""
    rows = [msgspec.json.decode(row.split(b" ", 1)[1]) for row in lines_of(path) if row[:8] == b"%08x" % crc(row)]
    return [rows[0]["lines"], *(row["n"] for row in rows[1:])]


def crc(row: bytes) -> int:
    return zlib.crc32(row[9:-1])


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- reading


def test_a_restore_sets_the_captured_value_or_the_lower_limit_of_somebody_else() -> None:
    assert Captured("3000").to_restore == "3000"
    assert Captured("3000", ceiling=2000).to_restore == "2000"
    assert Captured("3000", ceiling=0).to_restore == "0"


def test_an_absent_save_lacks_nothing(path: str) -> None:
    state = read_save(path)
    assert state == SavedState() and (state.lost, state.version) == ("", saves.SCHEMA_VERSION)


def test_a_whole_save_lacks_nothing_and_has_the_recipes(path: str) -> None:
    written(path)
    state = read_save(path)
    assert (state.lost, state.version, state.problems) == ("", 2, [])
    assert state.knobs["a"] == Captured("3000", (1000,), None, FileRecipe("/sys/a"))
    assert state.knobs["b"] == Captured("3100", (1100,), 900, FileRecipe("/sys/b"))


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_line_that_is_missing_is_named_by_its_number(path: str, number: int) -> None:
    written(path)
    lines = lines_of(path)
    put_lines(path, lines[:number] + lines[number + 1 :])
    expected = f"line {number} of 4 is missing or illegible"
    if number <= 2:
        expected = f"{'ab'[number - 1]} was written, and nothing says what it was before"
    assert read_save(path).lost == expected


@pytest.mark.parametrize("number", [1, 2])
def test_a_capture_that_is_missing_counts_though_its_knob_was_not_written(path: str, number: int) -> None:
    Save(path, BOOT).capture({"a": "3000", "b": "3100"})
    lines = lines_of(path)
    put_lines(path, lines[:number] + lines[number + 1 :])
    assert read_save(path).lost == f"line {number} of 2 is missing or illegible"


def test_a_save_without_its_head_or_without_any_line_says_so(path: str) -> None:
    written(path)
    put_lines(path, lines_of(path)[1:])
    assert read_save(path).lost == "no legible head"
    put_lines(path, [b"illegible\n"])
    assert read_save(path).lost == "no line is legible"
    put_lines(path, [])
    assert read_save(path).lost == "no line is legible"


def test_a_line_that_the_head_does_not_count_is_read_and_its_damage_costs_nothing(path: str) -> None:
    written(path)
    put_lines(path, [*lines_of(path), line(b'{"kind":"capture","v":2,"boot":"boot-1","n":5,"knob":"c","value":"7"}')])
    assert "c" in read_save(path).knobs and read_save(path).lost == ""
    put_lines(path, [*lines_of(path), b"torn\n"])
    state = read_save(path)
    assert state.problems == [f"{path}:7: line is damaged, skipped"] and state.lost == ""


OLD = line(b'{"kind":"capture","v":1,"boot":"boot-0","knob":"a","value":"3000"}')


def test_a_save_of_version_1_has_no_head_and_any_illegible_line_is_a_loss(path: str) -> None:
    put_lines(path, [OLD])
    state = read_save(path)
    assert (state.version, state.lost, state.boot_id) == (1, "", "boot-0")
    put_lines(path, [line(b'{"kind":"capture","boot":"boot-0","knob":"a","value":"3000"}')])
    assert read_save(path).version == 1, "where a line says none"
    put_lines(path, [OLD, b"torn\n"])
    assert read_save(path).lost == "an illegible line"


def test_the_version_and_the_boot_are_those_of_the_first_legible_line(path: str) -> None:
    written(path)
    put_lines(path, [b"torn\n", OLD, *lines_of(path)])
    state = read_save(path)
    assert (state.version, state.boot_id) == (1, "boot-0")
    written(f"{path}-2")
    put_lines(path, [*lines_of(f"{path}-2"), OLD])
    state = read_save(path)
    assert (state.version, state.boot_id) == (2, BOOT)


def test_an_empty_line_is_no_damage(path: str) -> None:
    written(path)
    put_lines(path, [b"\n", *lines_of(path), b"\n"])
    state = read_save(path)
    assert state.problems == [] and state.lost == ""


NONSENSE = {
    "cut": b'{"kind":',
    "of no kind": b'{"v":2}',
    "deep": b'{"kind":' + b"[" * 100_000,
    "zero": b"\0",
    "text for numbers": b'{"kind":"hold","v":"2","n":"2"}',
    "not UTF-8": b'{"kind":"\xff"}',
}


@pytest.mark.parametrize("payload", NONSENSE.values(), ids=NONSENSE)
def test_a_line_with_a_right_checksum_that_makes_no_sense_is_skipped_with_its_number(path: str, payload: bytes) -> None:
    written(path)
    put_lines(path, [*lines_of(path), line(payload)])
    Save(path, BOOT).wrote({"a": 1001})
    state = read_save(path)
    (problem,) = state.problems
    assert problem.startswith(f"{path}:6: ") and problem.endswith(", skipped")
    assert state.lost == "" and state.knobs["a"].ours == (1000, 1001), "what follows is read"


# --- the head and the numbers of lines


def test_the_head_has_the_same_length_whatever_it_counts(path: str) -> None:
    save, lengths = Save(path, BOOT), set[int]()
    for number in range(12):
        save.capture({f"k{number}": "1"})
        lengths.add(len(lines_of(path)[0]))
        assert numbers(path) == [number + 1, *range(1, number + 2)]
    assert len(lengths) == 1 and read_save(path).lost == ""


def test_a_save_that_is_opened_again_goes_on_with_its_numbers(path: str) -> None:
    written(path)
    again = Save(path, BOOT)
    again.wrote({"a": 1001})
    again.restored(["a"])
    assert numbers(path) == [6, 1, 2, 3, 4, 5, 6]


def test_a_save_goes_on_after_the_highest_number_where_lines_are_not_in_order(path: str) -> None:
    written(path)
    lines = lines_of(path)
    put_lines(path, [lines[0], lines[4], *lines[1:4]])
    Save(path, BOOT).wrote({"a": 1001})
    assert numbers(path) == [5, 4, 1, 2, 3, 5]


@pytest.mark.parametrize("head", [b"", b"torn\n", line(b'{"kind":"odd","v":2,"boot":"boot-1","lines":4}')])
def test_an_append_leaves_a_head_that_is_not_whole_as_it_is(path: str, head: bytes) -> None:
    written(path)
    damaged = head + b"".join(lines_of(path)[1:])
    Path(path).write_bytes(damaged)
    Save(path, BOOT).wrote({"a": 1001})
    assert Path(path).read_bytes().startswith(damaged), "only something is added"
    state = read_save(path)
    assert state.lost == "no legible head" and state.knobs["a"].ours == (1000, 1001)


def test_the_first_number_in_a_save_of_version_1_is_1(path: str) -> None:
    put_lines(path, [OLD])
    Save(path, BOOT).wrote({"a": 1001})
    assert msgspec.json.decode(lines_of(path)[-1].split(b" ", 1)[1])["n"] == 1
    assert lines_of(path)[0] == OLD and read_save(path).lost == ""


def test_a_head_in_another_place_does_not_count_as_one(path: str) -> None:
    written(path)
    head, *others = lines_of(path)
    put_lines(path, [*others, head])
    before = Path(path).read_bytes()
    Save(path, BOOT).wrote({"a": 1001})
    assert Path(path).read_bytes().startswith(before)


def test_the_numbers_begin_again_with_a_file_that_is_made_again(path: str) -> None:
    save = written(path)
    save.wrote({"a": 1001})
    save.remove()
    save.capture({"a": "3000"})
    assert numbers(path) == [1, 1]


# --- a new file


@pytest.mark.usefixtures("no_file_stays_open")
def test_what_a_killed_run_has_left_of_a_new_save_is_replaced(path: str) -> None:
    Path(f"{path}.begun").write_text("longer than any head is: " + 200 * "x")
    os.chmod(f"{path}.begun", 0o644)
    Save(path, BOOT).close()
    save = Save(path, BOOT)
    save.wrote({})
    save.close()
    assert os.listdir(os.path.dirname(path)) == ["save"]
    assert read_save(path).problems == [] and os.stat(path).st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("no_file_stays_open")
def test_a_save_that_cannot_be_begun_is_not_there(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SaveError, match=f"^{path}: cannot open {WHY}: No space left on device$"):
        Save(path, BOOT).capture({"a": "1"})
    assert not os.path.exists(path)


@pytest.mark.usefixtures("no_file_stays_open")
def test_a_save_with_a_torn_end_that_the_disk_has_no_room_to_end_stays_closed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(path)
    put_lines(path, [*lines_of(path), b"torn"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(SaveError, match=f"^{path}: cannot open {WHY}"):
            Save(path, BOOT).wrote({"a": 1})


# --- replacing and removing


@pytest.mark.usefixtures("no_file_stays_open")
def test_a_save_is_replaced_by_one_with_these_knobs_only(path: str) -> None:
    save = written(path)
    knobs = {"b": Captured("3100", (1100, 1200)), "c": Captured("3200", (5,), ceiling=3150), "d": Captured("3300")}
    save.replace(knobs, {"c": 950})
    state = read_save(path)
    assert state.lost == "" and state.restore_limits == {"c": 950} and state.boot_id == BOOT
    assert state.knobs == {
        "b": Captured("3100", (1100, 1200), None, recipe_of("b")),
        "c": Captured("3150", (5,), 950, recipe_of("c")),
        "d": Captured("3300", (), None, recipe_of("d")),
    }


@pytest.mark.usefixtures("no_file_stays_open")
def test_a_save_that_is_replaced_by_one_without_knobs_goes(path: str) -> None:
    written(path).replace({}, {"c": 950})
    assert os.listdir(os.path.dirname(path)) == []


def test_a_save_that_is_replaced_and_used_again_goes_on_with_its_numbers(path: str) -> None:
    save = written(path)
    save.rewrite({"a": Captured("3000", (1000, 1200))}, {})
    save.wrote({"a": 1300})
    assert numbers(path) == [5, 1, 2, 3, 4, 5] and read_save(path).knobs["a"].ours == (1200, 1300)


def test_a_damaged_save_that_is_replaced_has_a_head_again(path: str) -> None:
    written(path)
    put_lines(path, lines_of(path)[1:])
    save = Save(path, BOOT)
    save.wrote({"a": 1001})
    save.rewrite({"a": Captured("3000")}, {})
    save.wrote({"a": 1300})
    assert read_save(path).lost == "" and numbers(path) == [3, 1, 2, 3]


@pytest.mark.usefixtures("no_file_stays_open")
def test_a_save_stays_as_it_is_where_there_is_no_room_for_another(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save = written(path)
    before = Path(path).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(SaveError, match=r"No space left on device$"):
            save.rewrite({"a": Captured("3000")}, {})
    assert Path(path).read_bytes() == before


@pytest.mark.usefixtures("no_file_stays_open")
def test_a_save_that_is_removed_does_not_come_back(path: str, synced: list[str]) -> None:
    save = written(path)
    save.wrote({"a": 1})
    synced.clear()
    save.remove()
    assert synced == [os.path.dirname(path)]


# --- other names


@pytest.mark.usefixtures("no_file_stays_open")
def test_a_damaged_save_gets_a_second_name_and_keeps_the_first(path: str, synced: list[str]) -> None:
    written(path)
    synced.clear()
    assert [keep(path) for _ in range(2)] == [f"{path}.old-1", f"{path}.old-2"]
    assert os.path.samefile(path, f"{path}.old-1") and os.path.samefile(path, f"{path}.old-2")
    assert synced == [os.path.dirname(path)] * 2, "so it is on the disk when the first name goes"


def test_a_save_that_cannot_be_kept_is_an_error_that_names_it(path: str) -> None:
    with pytest.raises(SaveError, match=f"^{path}: cannot keep {WHY}: No such file or directory$"):
        keep(path)


def test_a_save_is_never_set_aside_over_another(path: str) -> None:
    Path(f"{path}.old-1").write_text("of an earlier boot")
    written(path)
    assert set_aside(path) == f"{path}.old-2"
    assert Path(f"{path}.old-1").read_text() == "of an earlier boot"
    assert not os.path.exists(path)


# --- directories


@pytest.mark.usefixtures("no_file_stays_open")
def test_new_directories_are_private_and_each_name_is_on_the_disk(tmp_path: Path, synced: list[str]) -> None:
    make_directory(str(tmp_path / "one" / "two"))
    assert sorted(synced) == [str(tmp_path), str(tmp_path / "one")]
    assert (tmp_path / "one" / "two").stat().st_mode & 0o077 == 0
    synced.clear()
    make_directory(str(tmp_path / "one" / "two"))
    assert synced == [], "it was there"


def test_a_directory_may_be_named_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_directory("one/two")
    make_directory(".")
    assert (tmp_path / "one" / "two").is_dir()


def test_directories_for_everybody_are_so_under_any_umask(tmp_path):
    """CIS-hardened hosts have a umask of 077 (or 027): the image's /usr would be root's alone."""
    before = os.umask(0o077)
    try:
        make_shared_directory(tmp_path / "usr/lib/nodectl")
    finally:
        os.umask(before)
    made = [tmp_path / "usr", tmp_path / "usr/lib", tmp_path / "usr/lib/nodectl"]
    assert [place.stat().st_mode & 0o777 for place in made] == [0o755] * 3
    (tmp_path / "own").mkdir(mode=0o700)
    make_shared_directory(tmp_path / "own")
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
