"""Is a compressed day of a live partition, with the models that predict its watts, replayed byte for byte?

The partition, its ledger and its job service are the real ones; nodes are made up and answer at once, in virtual time
(``tests.live.budgeted``). Jobs of five applications come as fast as eight nodes can run them, as many as an export has
(the last 1,000). For each way to predict: the decisions of the replay of what the partition exports, one by one, and
its predictions and lessons; and two event logs, byte by byte.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import pytest

from benchmarks.experiment import save
from cluster_agent.cli import main as clusterctl
from cluster_agent.replay.replay_files import arguments
from foundation.shell.text_table import render
from tests.live import test_live_as_replay as as_replay
from tests.live.test_live_predictions import model_of, played, recorded

JOBS, QUICK = 1000, 120
WAYS: Final = ("of=expected", "violation=0.1", "of=expected,model=")


class Row(msgspec.Struct, frozen=True):
    """``alike``: decisions, predictions and lessons; ``equal``: two event logs, which name the model by its SHA-256."""

    way: str
    jobs: int
    decisions: int
    predictions: int
    alike: bool
    equal: bool
    over_w: float
    live_cpu_s: float


def row_of(way: str, jobs: int, directory: Path) -> Row:
    model = model_of(directory)
    policy = f"easy-power:levels=highest,{way}".rstrip(",") + (str(model) if way.endswith("=") else "")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setattr(as_replay, "JOBS", jobs)
        calls = recorded(patch)
        began_s = time.process_time()
        made = played(directory, policy, jobs)
        live_cpu_s = time.process_time() - began_s
        live, calls[:] = calls[:], []
        files = as_replay.exported(made, directory)
        zero_s = int(min(job.queued_s for job in made.store.ended(jobs)))
        expected = as_replay.alike(made.decisions, zero_s)
        is_alike = as_replay.alike(as_replay.replayed(directory, files, policy), 0) == expected
        is_alike = is_alike and calls[: len(live)] == live
        given, log = arguments(str(directory), files), directory / "again"
        status = clusterctl(["replay", *given, "--policy", policy, "--log", str(log), "--out", str(directory / "o")])
    first, again = (directory / "events").read_bytes(), log.read_bytes()
    sha256 = hashlib.sha256(model.read_bytes()).hexdigest().encode()
    is_named = (sha256 in first) == way.endswith("=")
    predictions = sum(what == "admit" for what, *_ in live)
    return Row(
        way, jobs, len(made.decisions), predictions, is_alike,
        status == 0 and first == again and is_named, made.most_over_mw / 1000, live_cpu_s,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_models", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} jobs")
    options = parser.parse_args(argv)
    rows = []
    for way in WAYS:
        with tempfile.TemporaryDirectory() as directory:
            rows.append(row_of(way, QUICK if options.quick else JOBS, Path(directory)))
    cells = [
        (row.way, str(row.jobs), str(row.decisions), str(row.predictions), "yes" if row.alike else "NO",
         "yes" if row.equal else "NO", f"{row.over_w:.0f}", f"{row.live_cpu_s:.1f}")
        for row in rows
    ]  # fmt: skip
    print("EMULATED nodes, virtual time")
    headings = ("easy-power", "jobs", "decisions", "predictions", "as live", "bytes", "above budget W", "CPU s")
    print(render(headings, cells))
    print("JSON:", save("live_models", {"rows": rows}))
    return 0 if all(row.alike and row.equal and row.over_w <= 0 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
