"""What the comparison of the host before and after notices."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.twin.host import MARK, Host, unchanged_host


def left_behind(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)


def test_a_process_that_is_left_behind_counts_whatever_its_name() -> None:
    left = []
    with pytest.raises(AssertionError, match="sleep is new"), unchanged_host():
        left.append(left_behind(dict(os.environ)))
    left[0].kill()
    left[0].wait()


def test_processes_of_others_do_not_count_unless_they_are_named() -> None:
    others = {name: value for name, value in os.environ.items() if name != MARK}
    left = []
    with unchanged_host():
        left.append(left_behind(others))
    with pytest.raises(AssertionError, match="sleep is new"), unchanged_host("sleep"):
        left.append(left_behind(others))
    for one in left:
        one.kill()
        one.wait()


def test_a_file_in_run_and_a_setting_count() -> None:
    now = Host.now()
    path = next(path for path, text in now.settings.items() if text.strip().isdigit())
    changed = Host({**now.settings, path: "-1"}, now.mounts, (*now.run, "/run/left"), now.processes, now.marked)
    assert now.changed_to(changed, now) == [f"{path}: {now.settings[path]!r} is '-1'", "/run/left is new"]
    assert now.changed_to(now, now) == []
