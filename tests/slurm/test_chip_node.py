"""An emulated node whose cap the controller's firmware enforces: a grant arrives there, and the chip obeys it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from firmware_bridge.controlpulp.posix import PROGRAM
from lab.emulated.chip_node import REST_W, ChipTruth
from tests.fabric.cluster import Cluster

if not PROGRAM.exists():
    pytest.skip(f"{PROGRAM} is not built", allow_module_level=True)


def test_what_the_cluster_grants_is_in_the_controller_and_the_chip_draws_no_more(tmp_path: Path) -> None:
    """Real time, some five seconds: the firmware is a process."""
    trace = tmp_path / "trace.jsonl"
    plan = f"ChipPlan('n0', {{url!r}}, Path({str(tmp_path / 'keys')!r}), Path({str(tmp_path)!r}), Path({str(trace)!r}))"
    code = "from pathlib import Path; from lab.emulated.chip_node import ChipPlan, run_chip_node; run_chip_node({})"
    with Cluster(tmp_path, 180.0) as head:
        head.serve()
        head.allow("n0")
        head.start("-c", code.format(plan.format(url=head.url)), log="n0.log")

        def rows() -> list[ChipTruth]:
            lines = trace.read_bytes().splitlines()[:-1] if trace.exists() else []
            return [msgspec.json.decode(line, type=ChipTruth) for line in lines[-100:]]

        def is_granted(budget_w: float) -> bool:
            return {row.cap_mw for row in rows()[-10:]} == {round(1000 * (budget_w - REST_W))}

        head.until(lambda: is_granted(180.0), is_kept=False)
        assert head.ctl("budget", "set", "150").returncode == 0
        head.until(lambda: is_granted(150.0), is_kept=False)
        seen = len(trace.read_bytes().splitlines())
        head.until(lambda: len(trace.read_bytes().splitlines()) > seen + 60, is_kept=False)
        first, last = rows()[-50], rows()[-1]
    watts = (last.chip_j - first.chip_j) / (last.at_s - first.at_s)
    assert 0.8 * (150.0 - REST_W) < watts <= 1.02 * (150.0 - REST_W)
