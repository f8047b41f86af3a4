"""The command blocks of docs/tutorial.md, run in their order as a newcomer would."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.twin.served_node import why_not_served

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial.md"


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.skipif(bool(why_not_served()), reason=why_not_served() or "served")
@pytest.mark.timeout(3600)
def test_the_commands_of_the_tutorial_do_what_it_says(tmp_path: Path) -> None:
    script = "\n".join(blocks()).replace('make -C "$NODECTL" setup\n', "")  # it is set up: this test runs
    assert "make " not in script
    done = subprocess.run(
        ["sh", "-exc", script],
        cwd=tmp_path,
        env=os.environ | {"NODECTL": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count("the same, byte for byte") == 2
    assert "joules of the node: " in done.stdout
    assert (tmp_path / "tutorial/replays/sjbf").is_dir()


def test_every_section_but_the_last_has_a_block() -> None:
    sections = PAGE.read_text().split("\n## ")[1:]
    assert all("```sh\n" in section for section in sections[:-1]) and len(sections) == 8
