"""Files of phases: whole or not used, of this user alone, and never more than a bound."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import msgspec
import pytest

from foundation import phase_files
from foundation.phase_files import PhaseFiles, Remembered, with_run
from foundation.sealed_file import SealedFileError, sealed
from foundation.wire.phase_messages import KeptPhase, Key, Table

NOW = datetime.datetime(2026, 11, 29, 12, 0, tzinfo=datetime.UTC)
KEY = Key("/opt/solver", "NVIDIA A100-SXM4-80GB", "550.54", 400.0)
PHASE = KeptPhase(
    (1410, 1095), (40.0, 12.0), (0.6, 0.59), (330.0, 210.0), 0.98, 1e-4, 30.0, 1e-4, 20.0, 1e-4, 1e-4, 0.7
)


def kept(key: Key = KEY, phase: KeptPhase = PHASE, now: datetime.datetime = NOW) -> Remembered:
    return with_run(None, key, None, (phase,), now)


def test_what_was_written_is_read_again_by_the_agent_alone(tmp_path: Path) -> None:
    files = PhaseFiles(tmp_path / "phases")
    files.write(kept())
    assert files.read(KEY, NOW) == kept()
    assert files.path(KEY).stat().st_mode & 0o777 == 0o600
    assert files.folder.stat().st_mode & 0o777 == 0o700
    other = msgspec.structs.replace(KEY, driver="560.01")
    assert files.read(other, NOW) is None, "another driver is another key"


@pytest.mark.parametrize("at", [0, 40, -3])
def test_a_damaged_file_is_not_used_and_says_so(tmp_path: Path, at: int) -> None:
    files = PhaseFiles(tmp_path)
    files.write(kept())
    content = bytearray(files.path(KEY).read_bytes())
    content[at] ^= 1
    files.path(KEY).write_bytes(content)
    with pytest.raises(SealedFileError):
        files.read(KEY, NOW)
    found, lines = files.all()
    assert not found and len(lines) == 1


def test_a_file_cut_off_anywhere_is_not_used(tmp_path: Path) -> None:
    files = PhaseFiles(tmp_path)
    files.write(kept())
    whole = files.path(KEY).read_bytes()
    for length in range(0, len(whole), 7):
        files.path(KEY).write_bytes(whole[:length])
        with pytest.raises(SealedFileError):
            files.read(KEY, NOW)


@pytest.mark.parametrize(
    "wrong",
    [{"watts": (330.0, -1.0)}, {"watts": (330.0, 0.0)}, {"traffic": (0.6,)}, {"blocks": (1e400, 1.0)}, {"share": -0.5}],
)
def test_a_sealed_file_whose_figures_are_no_measurement_is_not_used(tmp_path: Path, wrong: dict[str, object]) -> None:
    files = PhaseFiles(tmp_path)
    phase = {**msgspec.to_builtins(PHASE), **wrong}
    content = {**msgspec.to_builtins(kept()), "tables": [{"phases": [phase], "runs": 1, "used_at": NOW.isoformat()}]}
    text = msgspec.json.encode(content).decode().replace("null", "1e999")
    files.path(KEY).write_text(sealed(text + "\n"))
    files.path(KEY).chmod(0o600)
    with pytest.raises(SealedFileError):
        files.read(KEY, NOW)


def test_a_file_that_others_may_write_or_that_is_a_job_s_is_not_used(tmp_path: Path) -> None:
    files = PhaseFiles(tmp_path)
    files.write(kept())
    files.path(KEY).chmod(0o666)
    with pytest.raises(SealedFileError, match="others than its agent"):
        files.read(KEY, NOW)
    if os.geteuid() == 0:
        files.path(KEY).chmod(0o600)
        os.chown(files.path(KEY), 1234, 1234)
        with pytest.raises(SealedFileError, match="others than its agent"):
            files.read(KEY, NOW)


def test_what_was_not_used_for_long_is_dropped(tmp_path: Path) -> None:
    files = PhaseFiles(tmp_path)
    files.write(kept(now=NOW - datetime.timedelta(days=phase_files.LASTS_DAYS + 1)))
    assert files.read(KEY, NOW) is None


def test_there_are_never_more_files_than_the_bound(tmp_path: Path) -> None:
    files = PhaseFiles(tmp_path, most=3)
    for number in range(5):
        key = msgspec.structs.replace(KEY, program=f"p{number}")
        files.write(kept(key))
        os.utime(files.path(key), (number + 1.0, number + 1.0))
    files.write(kept(msgspec.structs.replace(KEY, program="last")))
    found, _ = files.all()
    assert [one.key.program for one in found] == ["last", "p3", "p4"]


def test_two_programs_of_one_name_are_kept_beside_each_other() -> None:
    first = kept()
    later = msgspec.structs.replace(PHASE, watts=(200.0, 150.0))
    both = with_run(first, KEY, None, (later,), NOW)
    assert [table.phases for table in both.tables] == [(later,), (PHASE,)]
    again = with_run(both, KEY, 1, (PHASE,), NOW)
    assert again.tables[0] == Table((PHASE,), 2, NOW.isoformat(timespec="seconds"))
    third = with_run(again, KEY, None, (msgspec.structs.replace(PHASE, share=0.1),), NOW)
    assert len(third.tables) == phase_files.MOST_TABLES
