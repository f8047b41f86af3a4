"""Runs of the real agent on emulated nodes (``lab.node_demo.experiment``), and where measurements leave their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from lab.node_demo.experiment import LONGEST, Experiment, Result, run, run_again, run_all, workload_of

__all__ = ["LONGEST", "OUT", "Experiment", "Result", "run", "run_again", "run_all", "save", "workload_of"]

OUT = Path(__file__).parent.parent / "out" / "bench"


def save(name: str, content: Mapping[str, Any]) -> Path:
    """Write a measurement's JSON below ``out/bench/``; all of it is labelled emulated."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode({"emulated": True, **content}), indent=1))
    return path
