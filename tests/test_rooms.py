"""The house stays one that a newcomer knows at once: small rooms that say what they are, and no name for two things."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("foundation", "nodectl", "pmu", "twin", "firmware_bridge", "cluster_agent", "calibration", "lab")
MOST_FILES = 16

SAME_MEANING = {
    "__init__.py": "the room's own words",
    "api.py": "what a file of this folder exports",
    "registry.py": "the files of this folder by name",
    "build.py": "builds the native part next to it",
    "build_native.py": "builds the package's native module",
    "cli.py": "the table of a program's commands",
    "config.py": "the settings file of a program, and the command about it",
    "descriptors.py": "the limit of file descriptors",
    "errors.py": "the package's family of exceptions",
    "start.py": "the first of ours that a program runs",
    "keys.py": "the keys, and the command about them",
    "metrics.py": "the command `metrics`, of both programs",
    "policies.py": "the command `policies`, of both programs",
    "replay.py": "the command `replay`, of both programs",
    "restore.py": "restoring, and the command that does it",
}
"""File names that stand more than once, with the one thing that each of them means."""


def rooms() -> list[Path]:
    found = {file.parent for package in PACKAGES for file in (ROOT / package).rglob("*.py")}
    return sorted(folder for folder in found if "__pycache__" not in folder.parts)


@pytest.mark.parametrize("room", rooms(), ids=lambda room: room.relative_to(ROOT).as_posix())
def test_a_room_has_few_files_and_says_what_it_is(room: Path) -> None:
    assert len(list(room.glob("*.py"))) <= MOST_FILES
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text()))


def test_a_folder_of_c_has_few_headers() -> None:
    headers = defaultdict(list)
    for package in PACKAGES:
        for header in (ROOT / package).rglob("*.h"):
            headers[header.parent].append(header.name)
    assert len(headers) > 5
    assert {folder: len(names) for folder, names in headers.items() if len(names) > MOST_FILES} == {}


def test_no_name_of_a_file_has_two_meanings() -> None:
    paths = defaultdict(list)
    for room in rooms():
        for file in room.glob("*.py"):
            paths[file.name].append(file.relative_to(ROOT).as_posix())
    twice = {name for name, found in paths.items() if len(found) > 1}
    assert sorted(twice - set(SAME_MEANING)) == []
    assert sorted(set(SAME_MEANING) - twice) == [], "no longer needed"
