"""`clusterctl replay` in this process: what it measures and what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster_agent.cli import main


def replayed(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any], str]:
    """Its exit status, its measures (none if it failed), and its lines on stderr."""
    status = main(["replay", *map(str, arguments), "--json"])
    said = capsys.readouterr()
    return status, json.loads(said.out or "{}"), said.err
