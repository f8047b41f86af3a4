"""The joules of all nodes from their reports."""

from __future__ import annotations

from cluster_agent.serve.node_meter import NodeMeter
from tests.fabric.links import DECLARED, report

J = 1_000_000


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_counters_count_where_there_are_any_else_the_mean_power_and_else_the_tdp() -> None:
    clock = Clock()
    meter = NodeMeter(clock)
    for energy_mj in (1_000, 1_700):
        meter.hear(report("counts", energy_mj=energy_mj, power_mw=-1))
        meter.hear(report("means", power_mw=300_000))
        meter.hear(report("knows-nothing", power_mw=-1))
        clock.now_s += 2.0
    clock.now_s -= 2.0
    assert meter.read() == round(0.7 * J) + 600 * J + 2 * DECLARED.tdp_mw // 1000 * J


def test_a_silent_node_counts_as_before_until_its_next_report_puts_it_right() -> None:
    clock = Clock()
    meter = NodeMeter(clock)
    meter.hear(report(energy_mj=0, power_mw=200_000))
    clock.now_s += 10.0
    assert meter.read() == 2000 * J
    clock.now_s += 10.0
    meter.hear(report(energy_mj=3_000_000, power_mw=100_000))
    assert meter.read() == 1000 * J
    clock.now_s += 1.0
    meter.hear(report(boot_id="another", energy_mj=5, power_mw=100_000))
    assert meter.read() == 100 * J


def test_after_a_start_a_node_counts_from_the_start_on_and_one_that_joins_later_for_a_few_seconds() -> None:
    clock = Clock()
    meter = NodeMeter(clock)
    clock.now_s += 4.0
    meter.hear(report("known", power_mw=200_000))
    assert meter.read() == 800 * J
    clock.now_s += 96.0
    meter.hear(report("new", power_mw=100_000))
    assert meter.read() == (200 * 96 + 100 * 15) * J
