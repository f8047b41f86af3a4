"""The save on disk: what survives which damage."""

import errno
import json
import os
import re
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundation import boot
from foundation.boot import boot_id
from foundation.shell.errors import NodectlError
from nodectl.write import saves
from nodectl.write.restore import save_path
from nodectl.write.saves import Captured, Save, SavedState, SaveError, is_there, node_id, read_save, set_aside
from tests.open_files import n_open

BOOT = "boot-1"


def saved(directory, knobs=5):
    path = os.path.join(directory, "captured.jsonl")
    save = Save(path, BOOT)
    for number in range(knobs):
        save.capture({f"cpu/policy{number}/max_khz": str(3_000_000 + number)})
        save.wrote({f"cpu/policy{number}/max_khz": 1_200_000})
    save.close()
    return path


def test_what_is_captured_is_read_in_order(tmp_path):
    state = read_save(saved(tmp_path))
    assert list(state.knobs) == [f"cpu/policy{number}/max_khz" for number in range(5)]
    assert state.knobs["cpu/policy3/max_khz"] == Captured("3000003", (1_200_000,))
    assert state.boot_id == BOOT and state.problems == []


def test_an_absent_save_is_an_empty_one(tmp_path):
    assert read_save(str(tmp_path / "none")).knobs == {}


def test_the_first_capture_of_a_knob_stands(tmp_path):
    save = Save(str(tmp_path / "save"), BOOT)
    save.capture({"k": "original"})
    save.capture({"k": "ours"})
    assert read_save(save.path).knobs["k"].value == "original"


def test_a_restored_knob_may_be_captured_again(tmp_path):
    save = Save(str(tmp_path / "save"), BOOT)
    save.capture({"k": "1", "other": "2"})
    save.restored(["k"])
    assert list(read_save(save.path).knobs) == ["other"]
    save.capture({"k": "3"})
    assert read_save(save.path).knobs["k"].value == "3"


def test_the_last_two_values_count_as_ours(tmp_path):
    save = Save(str(tmp_path / "save"), BOOT)
    save.capture({"k": "9"})
    for value in (1, 2, 2, 3):
        save.wrote({"k": value})
    assert read_save(save.path).knobs["k"].ours == (2, 3)


@given(st.integers(min_value=0))
def test_a_save_cut_anywhere_loses_only_its_last_line(cut):
    with tempfile.TemporaryDirectory() as directory:
        path = saved(directory)
        whole = Path(path).read_bytes()
        cut %= len(whole)
        with open(path, "wb") as file:
            file.write(whole[:cut])
        complete = whole[:cut].count(b"\n")
        state = read_save(path)
        assert complete // 2 <= len(state.knobs) <= (complete + 2) // 2
        assert len(state.problems) <= 1
        again = Save(path, BOOT)  # and what is appended afterwards is whole
        again.capture({"later": "7"})
        again.close()
        assert read_save(path).knobs["later"].value == "7"


@given(st.integers(min_value=0), st.integers(1, 255))
def test_one_damaged_byte_loses_at_most_the_lines_it_touches(at, flip):
    with tempfile.TemporaryDirectory() as directory:
        path = saved(directory)
        data = bytearray(Path(path).read_bytes())
        data[at % len(data)] ^= flip
        with open(path, "wb") as file:
            file.write(data)
        state = read_save(path)
        assert len(state.knobs) >= 3
        for name, knob in state.knobs.items():
            assert knob.value == str(3_000_000 + int(name[len("cpu/policy")]))


def test_a_damaged_line_is_reported_with_file_and_number(tmp_path):
    path = saved(tmp_path)
    lines = Path(path).read_text().splitlines(keepends=True)
    lines[3] = lines[3].replace("3000001", "3000009")
    with open(path, "w") as file:
        file.writelines(lines)
    state = read_save(path)
    assert state.problems == [f"{path}:4: line is damaged, skipped"]
    assert "cpu/policy1/max_khz" not in state.knobs


def test_a_full_disk_is_one_line_naming_the_file():
    if not os.path.exists("/dev/full"):
        pytest.skip("/dev/full is missing: this kernel has no mem devices")
    with pytest.raises(SaveError, match=r"/dev/full: cannot write the save .*: No space left"):
        Save("/dev/full", BOOT).capture({"k": "1"})


def test_a_save_set_aside_never_overwrites_another(tmp_path):
    names = []
    for _ in range(3):
        path = saved(tmp_path)
        names.append(set_aside(path))
    assert len(set(names)) == 3 and all(os.path.exists(name) for name in names)


def test_the_file_is_private(tmp_path):
    assert os.stat(saved(tmp_path)).st_mode & 0o777 == 0o600


def test_an_emulated_node_on_a_real_one_has_a_name_of_its_own() -> None:
    """Both share the boot; a save of the one must never be put back on the other."""
    real, emulated = node_id("/run/nodectl/lock"), node_id("/run/nodectl/lock-fuse-0:40")
    assert real == boot_id()
    assert len({real, emulated, node_id("/run/nodectl/lock-fuse-0:41")}) == 3


def test_the_save_has_the_name_that_the_manual_gives() -> None:
    assert save_path("/var/lib/nodectl") == "/var/lib/nodectl/captured.jsonl"


def test_a_lock_whose_name_ends_in_lock_names_a_node_of_its_own() -> None:
    assert node_id("/run/nodectl/lock-of-the-clock") == boot_id() + "-of-the-clock"


def test_a_boot_without_a_name_is_an_error_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "BOOT_ID_PATH", "/nowhere/boot_id")
    with pytest.raises(NodectlError, match=r"^/nowhere/boot_id: No such file or directory; is /proc mounted\?$"):
        boot_id()


def test_an_absent_save_is_of_no_boot_and_without_problems(tmp_path: Path) -> None:
    assert read_save(str(tmp_path / "none")) == SavedState("", {}, [], {})


def test_a_save_that_cannot_be_read_is_an_error_and_no_empty_save(tmp_path: Path) -> None:
    with pytest.raises(
        SaveError, match=re.escape(f"{tmp_path}: cannot read what the knobs were: Is a directory") + "$"
    ):
        read_save(str(tmp_path))


def appended(path: str, *payloads: str) -> None:
    with open(path, "ab") as file:
        for payload in payloads:
            file.write(b"%08x %s\n" % (zlib.crc32(payload.encode()), payload.encode()))


def test_only_the_last_line_can_be_cut_short(tmp_path: Path) -> None:
    path = saved(tmp_path, knobs=1)
    with open(path, "ab") as file:
        file.write(b"0123")
    assert read_save(path).problems == [f"{path}:4: line is cut short, skipped"]
    with open(path, "ab") as file:
        file.write(b"\n")
    assert read_save(path).problems == [f"{path}:4: line is damaged, skipped"]


def test_a_line_of_an_unknown_kind_is_skipped_and_reported_and_what_follows_is_read(tmp_path: Path) -> None:
    path = saved(tmp_path, knobs=1)
    appended(path, '{"kind":"odd","v":1,"boot":"b"}', '{"kind":"capture","v":1,"boot":"b","knob":"k","value":"5"}')
    state = read_save(path)
    assert state.problems == [f"{path}:4: invalid value 'odd' - at $.kind, skipped"]
    assert state.knobs["k"] == Captured("5")
    assert state.boot_id == BOOT, "of the first line"


@pytest.mark.parametrize("version", [1, 2, 3, 7])
def test_a_save_of_a_newer_version_is_refused_with_the_fix(tmp_path: Path, version: int) -> None:
    path = saved(tmp_path, knobs=1)
    appended(path, f'{{"kind":"capture","v":{version},"boot":"b","knob":"k","value":"5"}}')
    if version <= 2:
        assert "k" in read_save(path).knobs
        return
    message = (
        f"{path}:4: written by a newer nodectl (save version {version}, this one knows 2); run `nodectl restore` of"
    )
    with pytest.raises(SaveError, match=re.escape(message)):
        read_save(path)


def test_lines_that_speak_of_a_knob_that_is_not_captured_change_nothing(tmp_path: Path) -> None:
    path = saved(tmp_path, knobs=1)
    before = read_save(path)
    save = Save(path, BOOT)
    save.wrote({"another": 1, "cpu/policy0/max_khz": 1_300_000})
    save.restored(["another"])
    after = read_save(path)
    assert list(after.knobs) == list(before.knobs)
    assert after.knobs["cpu/policy0/max_khz"].ours == (1_200_000, 1_300_000)


def test_a_grant_limits_knobs_captured_before_it_and_after_it_until_the_next_one(tmp_path: Path) -> None:
    save = Save(str(tmp_path / "save"), BOOT)
    save.capture({"a": "9", "b": "9"})
    save.limit_restores({"a": 1, "c": 3})
    save.capture({"c": "9", "d": "9"})
    state = read_save(save.path)
    assert {name: knob.restore_limit for name, knob in state.knobs.items()} == {"a": 1, "b": None, "c": 3, "d": None}
    assert state.restore_limits == {"a": 1, "c": 3}
    save.limit_restores({"b": 2})
    state = read_save(save.path)
    assert {name: knob.restore_limit for name, knob in state.knobs.items()} == dict.fromkeys("acd") | {"b": 2}


def test_a_save_is_there_or_not_or_that_is_not_known(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert is_there(path)
    assert not is_there(str(tmp_path / "none"))
    assert not is_there(path + "/below-a-file")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    message = re.escape(f"{loop}: cannot look for the save of what the knobs were: {os.strerror(errno.ELOOP)}") + "$"
    with pytest.raises(SaveError, match=message):
        is_there(str(loop))


def test_each_line_has_the_form_that_the_manual_shows(tmp_path: Path) -> None:
    save = Save(str(tmp_path / "save"), BOOT)
    save.capture({"k": "9"})
    save.wrote({"k": 1})
    save.limit_restores({"k": 2})
    save.restored(["k"])
    rows = [line.split(b" ", 1) for line in Path(save.path).read_bytes().splitlines()]
    assert all(checksum == b"%08x" % zlib.crc32(payload) for checksum, payload in rows)
    assert [json.loads(payload) for _, payload in rows] == [
        {"kind": "head", "v": 2, "boot": BOOT, "n": 0, "lines": 4},
        {"kind": "capture", "v": 2, "boot": BOOT, "n": 1, "knob": "k", "value": "9", "recipe": None},
        {"kind": "wrote", "v": 2, "boot": BOOT, "n": 2, "values": {"k": 1}},
        {"kind": "hold", "v": 2, "boot": BOOT, "n": 3, "values": {"k": 2}},
        {"kind": "restored", "v": 2, "boot": BOOT, "n": 4, "knobs": ["k"]},
    ]


def test_a_save_is_compacted_only_above_its_limit_and_keeps_all_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Save(str(tmp_path / "save"), BOOT)
    save.capture({"a": "9", "b": "8", "c": "7"})
    save.limit_restores({"a": 3})
    save.wrote({"a": 1, "b": 2})
    save.wrote({"a": 4})
    before, state = Path(save.path).read_bytes(), read_save(save.path)
    monkeypatch.setattr(saves, "COMPACT_BYTES", len(before))
    save.compact(state.knobs, state.restore_limits)
    assert Path(save.path).read_bytes() == before, "at the limit it stays"
    monkeypatch.setattr(saves, "COMPACT_BYTES", len(before) - 1)
    Path(f"{save.path}.new").write_text("of a run that was killed meanwhile")
    save.compact(state.knobs, state.restore_limits)
    assert os.listdir(tmp_path) == ["save"]
    assert Path(save.path).read_bytes() != before
    assert read_save(save.path) == state
    save.wrote({"c": 5})
    assert read_save(save.path).knobs["c"].ours == (5,), "what follows goes to the new file"
    size = os.path.getsize(save.path)
    monkeypatch.setattr(saves, "COMPACT_BYTES", size)
    before = Path(save.path).read_bytes()
    save.compact(state.knobs, state.restore_limits)
    assert Path(save.path).read_bytes() == before, "its size is known too"


def test_a_save_that_is_removed_twice_is_gone_and_the_next_capture_makes_it_again(tmp_path: Path) -> None:
    save = Save(saved(tmp_path), BOOT)
    for _ in range(2):
        save.capture({"k": "1"})
        assert "k" in read_save(save.path).knobs
        save.remove()
        save.remove()
        assert os.listdir(tmp_path) == []


def test_a_save_that_is_opened_again_goes_on_with_the_next_line(tmp_path: Path) -> None:
    path = saved(tmp_path, knobs=1)
    assert b"\n\n" not in Path(saved(tmp_path, knobs=1)).read_bytes()
    with open(path, "ab") as file:
        file.write(b"0123")
    Save(path, BOOT).wrote({"k": 1})
    assert b"0123\n" in Path(path).read_bytes() and b"\n\n" not in Path(path).read_bytes()


@pytest.mark.parametrize("torn", [b"", b"0123"])
def test_a_save_that_is_opened_again_knows_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bytes
) -> None:
    path = saved(tmp_path)
    with open(path, "ab") as file:
        file.write(torn)
    save, state = Save(path, BOOT), read_save(path)
    save.wrote({"k": 1})
    before = Path(path).read_bytes()
    for limit, is_kept in ((len(before), True), (len(before) - 1, False)):
        monkeypatch.setattr(saves, "COMPACT_BYTES", limit)
        save.compact(state.knobs, state.restore_limits)
        assert (Path(path).read_bytes() == before) == is_kept


def test_what_follows_a_full_disk_starts_on_a_line_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, write = Save(str(tmp_path / "save"), BOOT), os.write
    save.capture({"a": "1"})

    def write_some(room: int) -> None:
        def some(fd: int, data: bytes) -> int:
            nonlocal room
            if not room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            count = write(fd, data[: min(room, 3)])
            room -= count
            return count

        monkeypatch.setattr(os, "write", some)

    for room, verb in ((7, "write"), (0, "open"), (0, "open")):
        write_some(room)
        with pytest.raises(SaveError, match=f"cannot {verb} the save of what the knobs were: No space left on device$"):
            save.capture({"b": "2"})
    write_some(1000)
    save.capture({"b": "2"})
    save.wrote({"a": 5})
    state = read_save(save.path)
    assert state.knobs == {"a": Captured("1", (5,)), "b": Captured("2")}
    assert state.problems == [f"{save.path}:3: line is damaged, skipped"]


def test_a_disk_that_does_not_sync_is_an_error_that_names_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Save(str(tmp_path / "save"), BOOT)

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    message = f"^{save.path}: cannot write the save of what the knobs were: Input/output error$"
    with pytest.raises(SaveError, match=message):
        save.capture({"k": "1"})


def test_the_first_sync_after_opening_is_of_the_names_too_and_a_directory_of_others_may_refuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    (tmp_path / "state").mkdir()
    save = Save(str(tmp_path / "state" / "save"), BOOT)
    for _ in range(2):
        save.capture({"a": "1"})
        save.limit_restores({})
        assert synced == [save.path, str(tmp_path / "state"), str(tmp_path), save.path]
        save.close()
        synced.clear()
    open_file = os.open

    def refused(path: str, *flags: int, dir_fd: int | None = None) -> int:
        if path == str(tmp_path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return open_file(path, *flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refused)
    save.capture({"b": "2"})
    assert synced == [save.path, str(tmp_path / "state")] and "b" in read_save(save.path).knobs


def test_a_save_that_was_never_opened_is_not_compacted(tmp_path: Path) -> None:
    Save(str(tmp_path / "save"), BOOT).compact({}, {})
    assert os.listdir(tmp_path) == []


def test_a_save_whose_place_is_taken_when_it_is_compacted_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saves, "COMPACT_BYTES", 1)
    save = Save(str(tmp_path / "save"), BOOT)
    save.capture({"k": "1"})
    os.unlink(save.path)
    os.mkdir(save.path)
    message = f"{save.path}: cannot write the save of what the knobs were: Is a directory"
    before = n_open()
    with pytest.raises(SaveError, match=re.escape(message) + "$"):
        save.compact({"k": Captured("1")}, {})
    assert n_open() == before, "each try would leave one more open"


def test_a_value_may_have_spaces_and_a_line_without_a_version_is_of_the_first(tmp_path: Path) -> None:
    save = Save(str(tmp_path / "save"), BOOT)
    save.capture({"k": "of two  words"})
    appended(save.path, '{"kind":"capture","boot":"b","knob":"old","value":"5"}')
    state = read_save(save.path)
    assert [knob.value for knob in state.knobs.values()] == ["of two  words", "5"] and state.problems == []


def test_a_closed_save_leaves_no_file_open_and_a_second_close_does_nothing(tmp_path: Path) -> None:
    n = n_open()
    save = Save(str(tmp_path / "save"), BOOT)
    save.capture({"k": "1"})
    assert n_open() == n + 1
    save.wrote({"k": 2})
    assert n_open() == n + 1
    save.close()
    save.close()
    assert n_open() == n


def test_a_program_without_standard_input_may_have_its_save_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saves, "open_safely", os.open)  # which itself opens directories meanwhile
    aside = os.dup(0)
    os.close(0)
    try:
        save = Save(str(tmp_path / "save"), BOOT)
        save.capture({"k": "1"})
        assert os.path.samestat(os.fstat(0), os.stat(save.path)), "the lowest number that is free"
        save.wrote({"k": 2})
        save.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(0)
    finally:
        os.dup2(aside, 0)
        os.close(aside)
    assert read_save(save.path).knobs == {"k": Captured("1", (2,))}


def test_a_save_that_cannot_be_opened_removed_or_renamed_says_which_and_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = f"{tmp_path}/file/save"
    why = "the save of what the knobs were"
    with pytest.raises(SaveError, match=re.escape(f"{path}: cannot open {why}: File exists") + "$"):
        Save(path, BOOT).capture({"k": "1"})
    with pytest.raises(SaveError, match=re.escape(f"{path}: cannot remove {why}: Not a directory") + "$"):
        Save(path, BOOT).remove()
    with pytest.raises(SaveError, match=re.escape(f"{path}: cannot rename {why}: Not a directory") + "$"):
        set_aside(path)


def test_saves_set_aside_are_numbered_from_1(tmp_path: Path) -> None:
    assert [set_aside(saved(tmp_path)) for _ in range(2)] == [f"{tmp_path}/captured.jsonl.old-{n}" for n in (1, 2)]


def test_the_saves_new_directory_is_private(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        Save(str(tmp_path / "one" / "two" / "save"), BOOT).capture({"k": "1"})
    finally:
        os.umask(umask)
    assert (tmp_path / "one" / "two").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "one" / "two" / "save").stat().st_mode & 0o777 == 0o600


def test_a_save_in_the_working_directory_needs_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save = Save("save", BOOT)
    save.capture({"k": "1"})
    assert list(read_save("save").knobs) == ["k"]
    save.remove()
    assert os.listdir(tmp_path) == []
