"""How much work a node reports: instructions of its CPUs, and the progress of its job."""

from __future__ import annotations

import msgspec
import pytest

from foundation.wire.power_messages import Report, pack, read_report, unpack
from nodectl.loop.survey import survey
from nodectl.member.work import WorkDone
from pmu.decode import decode
from pmu.node import Instruments
from pmu.readings import RawProgress
from tests.nodectl.test_agent import node
from tests.nodectl.test_cluster_cap import CappedNode
from tests.nodectl.test_load_tag import declared


def rate(before: Report, after: Report, name: str = "instructions") -> float:
    return (getattr(after, name) - getattr(before, name)) * 1e9 / (after.report_id - before.report_id)


def test_a_capped_node_reports_fewer_instructions_a_second_in_the_measure_of_its_load(tmp_path):
    found = {}
    for load in ("hpl", "stream"):
        (tmp_path / load).mkdir()
        with node("skylake-6146", load) as inside:
            made = CappedNode(inside, tmp_path / load)
            made.ticks(50)
            free = rate(made.wire.sent[-3], made.wire.sent[-1])
            for sequence in range(1, 4):  # before each lease is over
                made.wire.grant(220.0, sequence)
                made.ticks(30)
            found[load] = rate(made.wire.sent[-3], made.wire.sent[-1]) / free
    assert found["hpl"] < 0.8
    assert found["hpl"] < found["stream"] - 0.1


def test_units_that_a_job_reports_are_counted_on_and_a_gap_is_no_slow_second(tmp_path):
    with node("skylake-6146", "hpl") as inside:
        told = RawProgress(1, 0)

        def tell() -> RawProgress:
            nonlocal told
            if told.source:
                told = RawProgress(told.source, told.units + 5)
            return told

        made = CappedNode(inside, tmp_path, tell)
        made.ticks(50)
        assert rate(made.wire.sent[-2], made.wire.sent[-1], "units") == pytest.approx(50.0, rel=0.02)
        counted = made.wire.sent[-1].units
        told = RawProgress(2, 7)  # another program, whose units are others
        made.ticks(11)
        assert -1 in [one.units for one in made.wire.sent[-2:]]
        made.ticks(21)
        assert counted < made.wire.sent[-1].units < counted + 200, "counted on, in units of the new one"


def test_a_node_whose_job_reports_nothing_has_no_units_and_one_whose_gpus_work_no_instructions():
    told = {}
    for machine, load in (("skylake-6146", "hpl"), ("genoa-h100", "easywave")):
        with node(machine, load) as inside:
            layout = survey(inside.ports).layout
            instruments, clock, work = Instruments(inside.ports, layout), inside.ports.clock, WorkDone()
            before = instruments.sweep()
            for _ in range(20):
                clock.sleep_until_ns(clock.now_ns() + 100_000_000)
                after = instruments.sweep()
                work.add(decode(layout, before, after), layout)
                before = after
            told[load] = work.totals()
    hpl, easywave = told["hpl"], told["easywave"]
    assert hpl["units"] == hpl["gpu_busy_ms"] == hpl["gpu_mj"] == -1
    assert hpl["instructions"] > 1e9
    assert (easywave["units"], easywave["instructions"]) == (-1, -1)
    assert 0.5 < hpl["instructions"] / hpl["cycles"] < 4.0
    assert 100_000 < hpl["cpu_mj"] < 1_000_000 and 10_000 < hpl["memory_mj"] < hpl["cpu_mj"]  # in two seconds
    assert easywave["cpu_mj"] > 10_000 and easywave["memory_mj"] == -1  # AMD's have no meter of memory
    assert hpl["stalled_cycles"] == -1  # this machine has no such event
    assert hpl["llc_misses"] > 0
    assert easywave["gpu_busy_ms"] > 500 and easywave["gpu_mj"] > 100_000  # in two seconds


def test_a_report_with_counts_of_work_is_read_by_an_older_agent_and_one_without_by_a_newer():
    class Older(msgspec.Struct):
        node: str
        held: str = ""

    sent = Report("n0", "b", 1, 0, 0, 0, 1, "unseen", 1, declared(), held="no", units=3, instructions=4)
    frame = unpack(pack("report", sent))
    assert msgspec.msgpack.decode(frame.body, type=Older).held == "no"
    assert read_report(frame) == sent
    body = msgspec.to_builtins(sent)
    del body["units"], body["instructions"]
    read = read_report(msgspec.structs.replace(frame, body=msgspec.Raw(msgspec.msgpack.encode(body))))
    assert (read.units, read.instructions) == (-1, -1)
