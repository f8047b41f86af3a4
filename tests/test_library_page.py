"""docs/library.md as a reader follows it, and the notebooks that it names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster_agent import library
from tests.recorded import RECORDED, needs_recorded

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "library.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
NOTEBOOKS = ROOT / "docs" / "notebooks"


def test_the_blocks_of_the_page_run_in_their_order(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is missing: install pandas")
    assert len(BLOCKS) >= 6
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(BLOCKS)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "bounded slowdown" in done.stdout and "mine, conservative" in done.stdout
    assert re.search(r"^column run_s, row \d+: nan is no number.* run_s \d+$", done.stdout, re.MULTILINE)


def test_the_page_names_what_a_world_takes_and_the_library_has() -> None:
    fields = [name for name in library.World.__dataclass_fields__ if name != "jobs"]
    assert ", ".join(fields) in re.sub(r"\s+", " ", PAGE)
    assert [name for name in library.policy.__kwdefaults__ if name != "name"] == []
    named = {
        name for names in re.findall(r"from cluster_agent\.library import (.*)", PAGE) for name in names.split(", ")
    }
    assert named <= set(library.__all__)


def executed(name: str, **environment: str) -> str:
    """What the cells of a notebook print; a cell that fails raises."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is missing: install nbclient and ipykernel")
    import nbformat

    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "kept without outputs"
    given = os.environ | environment | {"PYTHONPATH": str(ROOT)}
    client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources={})
    client.execute(env=given)
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", ())]
    return "".join(one.get("text", "") or one.get("data", {}).get("text/plain", "") for one in outputs)


def test_a_notebook_builds_a_policy_and_judges_it_on_other_jobs() -> None:
    assert "judged on jobs that chose nothing" in executed("own_policy.ipynb")


@needs_recorded("sc15-backfilling")
def test_a_notebook_repeats_a_published_table() -> None:
    printed = executed("published_table.ipynb", SC15_LOGS=str(RECORDED / "sc15-backfilling"))
    assert "all as published" in printed
