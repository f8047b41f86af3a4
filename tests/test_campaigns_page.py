"""docs/campaigns.md as a reader follows it: the study that ships, from the campaign's file to the page's table."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster_agent.cli import main
from cluster_agent.commands.replays.campaign import campaign

PAGE = (Path(__file__).parents[1] / "docs" / "campaigns.md").read_text()


def test_the_study_of_more_nodes_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """105 replays, some 2 s."""
    pytest.importorskip("pandas", reason="pandas is missing: install nodectl[notebook]")
    monkeypatch.chdir(tmp_path)
    assert main(["campaign", "overprovisioning", "--out", "out/more-nodes"]) == 0
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (expected,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", expected)
    assert expected.count(" W: ") == 3


def test_the_page_names_the_options_of_the_command() -> None:
    named = set(re.findall(r"(--[a-z]+)", PAGE))
    options = {name for one in campaign.params for name in one.opts if name.startswith("--")}
    assert {"--out", "--join", "--slurm", "--sbatch", "--dask", "--lease", "--trace", "--policy"} <= named & options
