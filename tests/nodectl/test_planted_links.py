"""Root in a directory of another user: a link that was put there is never written through."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import nodectl
from foundation.planted_links import open_new, open_safely
from foundation.sealed_file import write_whole
from nodectl.loop.calibration_page import Answer, CalibrationPage
from nodectl.loop.metrics_page import MetricsPage
from nodectl.write.generation import Generation
from nodectl.write.lock import FileLock, LockError
from nodectl.write.restore import restore_saved
from nodectl.write.saves import Save, SaveError, read_save
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, and another user")

OTHER = 65534
MINE = "root's own\n"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A directory of another user, who may enter it."""
    for place in (tmp_path, *tmp_path.parents):
        if place.stat().st_uid == 0 and place != Path("/"):
            place.chmod(place.stat().st_mode | 0o011)
    directory = tmp_path / "theirs"
    directory.mkdir()
    os.chown(directory, OTHER, OTHER)
    return directory


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine"
    file.write_text(MINE)
    file.chmod(0o600)
    return file


def plant(link: Path, target: Path) -> None:
    link.symlink_to(target)
    os.lchown(link, OTHER, OTHER)


def is_untouched(mine: Path) -> bool:
    return mine.read_text() == MINE and mine.stat().st_mode & 0o777 == 0o600 and mine.stat().st_uid == 0


def test_a_lock_is_not_taken_through_a_link(theirs: Path, mine: Path) -> None:
    plant(theirs / "lock", mine)
    with pytest.raises(LockError, match="is a link of user 65534, which is not followed: remove it"):
        FileLock(str(theirs / "lock"), "runs").acquire()
    assert is_untouched(mine)


def test_a_generation_and_a_save_are_not_made_through_a_link(theirs: Path, mine: Path) -> None:
    plant(theirs / "lock.generation", mine)
    with pytest.raises(OSError, match="is a link of user"):
        Generation(str(theirs / "lock.generation")).begin()
    plant(theirs / "save.begun", mine)
    Save(str(theirs / "save"), "boot").capture({"a": "1"})
    assert is_untouched(mine) and read_save(str(theirs / "save")).knobs["a"].value == "1"
    plant(theirs / "other", mine)
    for attempt in (
        lambda: Save(str(theirs / "other"), "boot").capture({"a": "1"}),
        lambda: read_save(f"{theirs}/other"),
    ):
        with pytest.raises(SaveError, match="is a link of user"):
            attempt()
    assert is_untouched(mine)


def test_root_applies_no_save_that_another_user_has_written(theirs: Path) -> None:
    path = theirs / "captured.jsonl"
    save = Save(str(path), "boot")
    save.capture({"a": "1"})
    save.close()
    os.chown(path, OTHER, OTHER)
    with pytest.raises(SaveError, match=f"belongs to user {OTHER}, who could have any knob set by it: remove it"):
        restore_saved(str(path), "boot", lambda name: pytest.fail(f"{name} was looked for"))


def test_the_restorer_reads_no_save_of_another_user_and_none_through_a_link(theirs: Path, tmp_path: Path) -> None:
    program = Path(nodectl.__file__).parent / "nodectl-restorer"
    path = theirs / "captured.jsonl"
    save = Save(str(path), "boot")
    save.capture({"a": "1"})
    save.close()

    def said(file: Path) -> str:
        options = ["--save", str(file), "--lock", str(tmp_path / "lock"), "--boot", "boot", "--root", str(tmp_path)]
        done = subprocess.run([program, "restore", *options], capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 1, done.stdout
        return done.stdout + done.stderr

    assert said(path).startswith("a  "), "a knob that is not there"
    plant(theirs / "link", path)
    assert "cannot read what the knobs were: Too many levels of symbolic links" in said(theirs / "link")
    os.chown(path, OTHER, OTHER)
    assert "it belongs to another user, who could have any knob set by it: remove it" in said(path)


@pytest.mark.parametrize("name", ["metrics.prom.new", ".calibration-answer.json.PID"])
def test_a_page_replaces_a_link_and_leaves_alone_where_it_leads(theirs: Path, mine: Path, name: str) -> None:
    (theirs / "agent").mkdir()
    plant(theirs / "agent" / name.replace("PID", str(os.getpid())), mine)
    if name.startswith("metrics"):
        page = MetricsPage(str(theirs / "agent/metrics.prom"), None, "monitor")  # type: ignore[arg-type]
        page._families = lambda period: iter(["nodectl_up 1\n"])  # type: ignore[method-assign,assignment]
        page.update(1, None)  # type: ignore[arg-type]
        made = theirs / "agent/metrics.prom"
        assert made.read_text().startswith("nodectl_up 1\n") and made.stat().st_mode & 0o777 == 0o644
    else:
        pages = CalibrationPage(str(theirs / "lock"))
        pages.answer(Answer(khz=1, at_ns=5, cap_mw=-1, most_mw=1))
        assert not pages.answer_path.is_symlink() and pages.answered(6)
    assert is_untouched(mine)


def test_a_whole_file_gets_its_mode_before_it_gets_its_name(
    theirs: Path, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(path: str, mode: int) -> None:
        raise AssertionError(f"chmod({path!r}) follows whatever has that name now")

    monkeypatch.setattr(os, "chmod", swapped)
    write_whole(theirs / "table", "text")
    assert (theirs / "table").stat().st_mode & 0o777 == 0o644


def test_a_run_of_roots_in_the_state_directory_of_the_agents_user_writes_through_no_link(
    theirs: Path, mine: Path, tmp_path: Path
) -> None:
    """The directory of the journal is a link, then its lock."""
    outside = tmp_path / "outside"
    outside.mkdir()
    program = [sys.executable, "-m", "nodectl.cli", "run", "--duration", "300ms", "--state-dir", str(theirs)]

    def said() -> str:
        done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S)
        return done.stderr

    plant(theirs / "journal", outside)
    assert f"no journal: cannot use the lock {theirs}/journal/.lock: journal is a link of user {OTHER}" in said()
    (theirs / "journal").unlink()
    (theirs / "journal").mkdir()
    plant(theirs / "journal/.lock", mine)
    assert f".lock is a link of user {OTHER}, which is not followed: remove it" in said()
    assert is_untouched(mine) and not any(outside.iterdir())


def test_links_of_root_on_the_way_are_followed_and_others_are_not(theirs: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "relative").symlink_to("disk")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative")
    os.close(open_new(tmp_path / "absolute" / ".." / "disk" / "file"))
    assert stat.S_IMODE((disk / "file").stat().st_mode) == 0o600
    plant(theirs / "way", disk)
    with pytest.raises(OSError, match="way is a link"):
        open_safely(theirs / "way" / "file", os.O_RDONLY)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        open_safely(tmp_path / "round" / "file", os.O_RDONLY)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "it is not a regular file"),
        (lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3)), "it is not a regular file"),
        (lambda path: os.link(path.parents[1] / "mine", path), "it has a second name, in a directory of another user"),
    ],
    ids=["FIFO", "device", "second name"],
)
def test_what_is_no_plain_file_of_its_own_is_refused_at_once(
    theirs: Path, mine: Path, make: Callable[[Path], None], why: str
) -> None:
    make(theirs / "file")
    with pytest.raises(OSError, match=why):
        open_safely(theirs / "file", os.O_RDWR | os.O_CREAT)
    assert is_untouched(mine)
