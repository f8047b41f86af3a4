"""What a node has on record of its runs, damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodectl.jobs.run_files import GROUP, read_group

USER = {"uid": 4711, "name": "eve"}


@pytest.mark.parametrize(
    "changed",
    [{"cgroup": ["x"]}, {"cgroup": [None, 2]}, {"half": [[0]]}, {"half": 3}, {"half": [["x"], ""]}, {"user": []}],
    ids=str,
)
def test_processes_of_a_damaged_record_are_none_and_the_agent_goes_on(tmp_path: Path, changed: dict[str, Any]) -> None:
    whole = {"cgroup": None, "mark": "a", "user": USER, "half": None}
    (tmp_path / GROUP).write_text(json.dumps(whole))
    assert read_group(tmp_path).mark == "a"
    (tmp_path / GROUP).write_text(json.dumps(whole | changed))
    found = read_group(tmp_path)
    assert (found.cgroup, found.mark, found.half) == (None, "", None)
