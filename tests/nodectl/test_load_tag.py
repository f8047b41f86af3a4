"""What a node's agent takes its load to be, and how it says so."""

import itertools
import math

import msgspec
import pytest

from foundation.wire.power_messages import Report, pack, read_report, unpack
from nodectl.config import Cluster
from nodectl.decide.load_tag import SECONDS_TO_CHANGE, Counted, TagFilter, classify
from nodectl.member.cluster_cap import declaration
from tests.nodectl.test_agent import node
from tests.nodectl.test_cluster_cap import CappedNode
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

NAN = math.nan


@pytest.mark.parametrize(
    ("load", "tag"), [("hpl", "compute"), ("imb", "compute"), ("nas", "mixed"), ("stream", "memory")]
)
@pytest.mark.parametrize("seed", [3, 4])
def test_stalled_cycles_tell_emulated_loads_apart_though_counters_err_by_a_fifth(tmp_path, load, tag, seed):
    machine = load_machine("curie")
    with InProcess(Twin(machine, load_workload(load, machine, seed=seed, bias=0.2), seed=seed)) as inside:
        made = CappedNode(inside, tmp_path)
        made.ticks(70)
        assert (made.wire.sent[-1].tag, made.wire.sent[-1].tag_source) == (tag, "measured")
        assert (made.wire.sent[1].tag, made.wire.sent[1].tag_source) == ("", ""), "not after one second"


@pytest.mark.parametrize(("load", "tag"), [("hpl", "compute"), ("nas", "mixed"), ("stream", "memory")])
def test_without_stalls_instructions_tell_them_apart_at_full_clocks_and_under_a_cap(tmp_path, load, tag):
    with node("skylake-6146", load) as inside:
        made = CappedNode(inside, tmp_path)
        made.ticks(70)
        assert made.wire.sent[-1].tag == tag
        for sequence in range(1, 5):  # before each lease is over
            made.wire.grant(200.0, sequence)
            made.ticks(30)
        assert made.wire.sent[-1].sequence > 0
        assert made.wire.sent[-1].tag == tag, "clocks are lower, the load is what it was"


def test_an_idle_node_says_nothing(tmp_path):
    machine = load_machine("skylake-6146")
    with InProcess(Twin(machine, None, seed=1)) as inside:
        made = CappedNode(inside, tmp_path)
        made.ticks(70)
        assert made.wire.sent[-1].tag == ""


def test_an_agent_before_tag_sources_understands_a_report_that_has_one():
    class Older(msgspec.Struct):
        node: str
        tag: str = ""

    sent = Report("n0", "b", 1, 0, 0, 0, 1, "unseen", 1, declared(), tag="memory", tag_source="measured")
    frame = unpack(pack("report", sent))
    assert msgspec.msgpack.decode(frame.body, type=Older).tag == "memory"
    assert read_report(frame).tag_source == "measured"
    body = msgspec.to_builtins(sent)
    del body["tag_source"]
    older = msgspec.structs.replace(frame, body=msgspec.Raw(msgspec.msgpack.encode(body)))
    assert (read_report(older).tag, read_report(older).tag_source) == ("memory", "")


def declared():
    return declaration(Cluster(tdp_w=500.0, mop_w=200.0, safe_w=220.0, boot_w=300.0))


@pytest.mark.parametrize(
    ("counted", "tag"),
    [
        (Counted(0.9, 0.5, 1.0), "compute"),  # stalls say more than instructions
        (Counted(0.2, 2.4, 1.0), "memory"),
        (Counted(NAN, 2.4, 1.0), "compute"),
        (Counted(NAN, 1.1, 1.0), "mixed"),
        (Counted(NAN, 0.55, 1.0), "memory"),
        (Counted(NAN, 1.25, 0.5), "compute"),  # 2.4 at full clocks
        (Counted(NAN, NAN, 1.0), ""),
        (Counted(NAN, 1.0, 0.0), ""),
    ],
)
def test_one_second_of_counters_has_a_tag(counted, tag):
    assert classify(counted) == tag


def test_a_tag_is_believed_after_some_seconds_and_a_value_at_a_mark_does_not_flicker():
    tag_filter = TagFilter()
    for _ in range(SECONDS_TO_CHANGE - 1):
        tag_filter = tag_filter.after("memory")
        assert tag_filter.tag == ""
    tag_filter = tag_filter.after("memory")
    assert tag_filter.tag == "memory"
    for beta in itertools.islice(itertools.cycle([0.29, 0.31, 0.32]), 300):
        tag_filter = tag_filter.after(classify(Counted(beta, NAN, 1.0), tag_filter.tag))
        assert tag_filter.tag == "memory"
    for seen in ("mixed", "mixed", "memory", "mixed", "mixed", "mixed", "mixed"):
        tag_filter = tag_filter.after(seen)
        assert tag_filter.tag == "memory"
    assert tag_filter.after("mixed").tag == "mixed"
