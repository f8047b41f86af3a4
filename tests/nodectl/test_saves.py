"""The save on disk: what survives which damage."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodectl.saves import Captured, Save, SaveError, boot_id, node_id, read_save, set_aside

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


def test_a_restored_knob_may_be_captured_anew(tmp_path):
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
    lines[2] = lines[2].replace("3000001", "3000009")
    with open(path, "w") as file:
        file.writelines(lines)
    state = read_save(path)
    assert state.problems == [f"{path}:3: line is damaged, skipped"]
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


def test_an_emulated_node_beside_the_real_one_has_a_name_of_its_own() -> None:
    """Both share the boot; a save of the one must never be put back on the other."""
    real, emulated = node_id("/run/nodectl/lock"), node_id("/run/nodectl/lock-fuse-0:40")
    assert real == boot_id()
    assert len({real, emulated, node_id("/run/nodectl/lock-fuse-0:41")}) == 3
