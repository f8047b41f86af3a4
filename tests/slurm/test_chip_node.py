"""An emulated node whose cap the controller's firmware enforces: a grant arrives there, and the chip obeys it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec
import pytest

from firmware_bridge.controlpulp import qemu
from firmware_bridge.controlpulp.posix import PROGRAM
from firmware_bridge.scmi.protocols.power_capping import CapGet, CapSet
from firmware_bridge.scmi.transports.url import open_client
from lab.emulated.chip_node import REST_W, ChipTruth, as_image
from tests.fabric.cluster import Cluster
from tests.waiting import PATIENCE_S, within

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
    watts = (last.chip_j - first.chip_j) / (last.chip_s - first.chip_s)  # by its own time: on a busy machine it is late
    assert 0.8 * (150.0 - REST_W) < watts <= 1.02 * (150.0 - REST_W)


@pytest.mark.skipif(bool(qemu.missing()), reason=str(qemu.missing()))
def test_the_image_in_qemu_obeys_a_cap_on_its_line_and_shows_it_to_another_agent(tmp_path: Path) -> None:
    with as_image(tmp_path, load=3) as controlled, contextlib.closing(open_client(controlled.url)) as runtime:
        plant = controlled.chip.plant

        def draws(low_w: float, high_w: float) -> bool:
            before_j, began_s = plant.energy_j, time.monotonic()
            time.sleep(0.3)
            return low_w < (plant.energy_j - before_j) / (time.monotonic() - began_s) < high_w

        for cap_w in (150.0, 80.0):
            runtime.request(CapSet(0, 0, round(1000 * cap_w)))
            assert within(PATIENCE_S, lambda cap_w=cap_w: draws(0.8 * cap_w, 1.02 * cap_w))  # type: ignore[misc]
            assert controlled.bmc.request(CapGet(0)).cap == 1000 * cap_w
