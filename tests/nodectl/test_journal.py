"""The journal: what goes in comes out, bit for bit, within its bound, whatever happens to its end."""

import dataclasses
import itertools
import math
import os
import statistics
import struct
import time

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nodectl.decide.decisions import Decisions, PolicyDecision
from nodectl.decide.power_walk import WalkState
from nodectl.decide.temperature_limit import ThermalState
from nodectl.journal import JournalError, JournalWriter, open_journal
from nodectl.journal.format import HEADER, MAGIC
from nodectl.journal.packing import Row, pack, unpack
from nodectl.journal.state import StateError, decode_state, encode_state
from nodectl.knobs.api import Outcome
from nodectl.policies.api import Request
from nodectl.write.lock import LockError
from pmu.layout import EnergyZone, FrequencyDomain, Gpu, Layout
from pmu.readings import GPU_FIELDS, RAW_MISSING, RawSweep
from tests.nodectl.small_node import layout as small_layout
from tests.yardstick import yardstick_ns


class Settings(msgspec.Struct, frozen=True):
    period_ms: float = 100.0


class Params(msgspec.Struct, frozen=True):
    threshold: float = 0.1


@dataclasses.dataclass(frozen=True)
class State:
    values: np.ndarray
    count: int


def large_layout(cpus=384, gpus=8):
    return Layout(
        cpus=tuple(range(cpus)),
        core_of=tuple(cpu // 2 for cpu in range(cpus)),
        package_of=tuple(cpu * 2 // cpus for cpu in range(cpus)),
        events=("cycles", "reference-cycles", "instructions", "stalls"),
        reference_khz=2_400_000,
        domains=tuple(FrequencyDomain(cpu, (cpu,), 400_000, 3_700_000, 2_400_000) for cpu in range(cpus)),
        zones=tuple(EnergyZone(f"package-{n}", f"intel-rapl:{n}", "package", n, 1 << 38) for n in range(2)),
        gpus=tuple(
            Gpu(n, f"GPU-{n}", "H100", tuple(range(345, 1981, 15)), 2619, 700.0, 200.0, 700.0, True)
            for n in range(gpus)
        ),
    )


class Source:
    """Sweeps and decisions as a busy node makes them: counters that grow with noise, requests that seldom change."""

    def __init__(self, layout, seed=1):
        self.layout = layout
        self.random = np.random.default_rng(seed)
        self.time_ns = 5_000_000_000
        self.counters = np.zeros((len(layout.cpus), len(layout.events)), np.int64)
        self.energy = np.zeros(len(layout.zones), np.int64)
        self.target = np.full(len(layout.cpus), 2_400_000)
        self.knobs = tuple(f"cpu/policy{domain.policy}/max_khz" for domain in layout.domains)

    def sweep(self):
        noise = self.random.standard_normal(self.counters.shape)
        self.counters = self.counters + (2.4e8 * (1 + 0.05 * noise)).astype(np.int64)
        self.energy = (self.energy + self.random.integers(1, 10**8, self.energy.size)) % (1 << 30)
        self.time_ns += 100_000_000 + int(self.random.integers(0, 50_000))
        gpu = self.random.integers(0, 10**6, (len(self.layout.gpus), len(GPU_FIELDS)))
        counters = self.counters.copy()
        counters[self.random.random(len(counters)) < 0.01] = RAW_MISSING
        return RawSweep(self.time_ns, counters, self.energy.copy(), gpu)

    def decisions(self):
        if self.random.random() < 0.2:
            self.target = self.target.copy()
            self.target[self.random.integers(self.target.size)] = int(self.random.integers(1_200_000, 3_000_000))
        n = self.target.size
        loss = self.random.random(n) * 0.03
        loss[0] = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_DEAD_BEEF))[0]
        request = Request(self.target, self.random.integers(0, 4, n, dtype=np.uint8), loss, np.full(n, math.nan))
        state = State(self.random.random(3), 7)
        values = self.target[[domain.cpus[0] for domain in self.layout.domains]]
        bound = np.ones(values.size, np.uint8)
        return Decisions((PolicyDecision("wish", Params(), state, request),), self.knobs, values, bound)


def written(directory, ticks=30, layout=None, max_bytes=10**9, seed=1, outcomes=()):
    """A closed journal, and what went into it."""
    source = Source(layout or small_layout(), seed)
    writer = JournalWriter(directory, source.layout, Settings(), max_bytes)
    entries = [(source.sweep(), Decisions())]
    writer.append(*entries[0], [], 0, 0)
    for tick in range(ticks):
        entries.append((source.sweep(), source.decisions()))
        writer.append(*entries[-1], outcomes, 1000 + tick, 2000 + tick)
    writer.close()
    return entries


def assert_same(record, sweep, decisions):
    assert record.raw.time_ns == sweep.time_ns
    for name in ("counters", "energy_uj", "gpu"):
        assert np.array_equal(getattr(record.raw, name), getattr(sweep, name))
    assert record.has_decided == bool(decisions.policies)
    for request, decision in zip(record.requests, decisions.policies, strict=True):
        for name in ("target", "reason", "loss", "saved_w"):
            assert getattr(request, name).tobytes() == getattr(decision.request, name).tobytes()
    if decisions.policies:
        assert np.array_equal(record.values, decisions.values)
        assert np.array_equal(record.bound, decisions.bound)


def segments(directory):
    return sorted(os.path.join(directory, name) for name in os.listdir(directory) if name.endswith(".seg"))


def test_every_tick_comes_back_bit_for_bit(tmp_path):
    entries = written(tmp_path)
    journal = open_journal(tmp_path)
    records = list(journal)
    assert len(records) == len(entries) and journal.problems == []
    for record, (sweep, decisions) in zip(records, entries, strict=True):
        assert_same(record, sweep, decisions)
    assert [record.sequence for record in records] == list(range(31))
    assert records[0].previous is None
    assert np.array_equal(records[5].previous.counters, entries[4][0].counters)
    assert (records[-1].lateness_ns, records[-1].cost_ns) == (1029, 2029)


def test_the_head_names_node_settings_policies_and_knobs(tmp_path):
    entries = written(tmp_path)
    keyframe = list(open_journal(tmp_path))[1].keyframe
    assert keyframe.layout == small_layout()
    assert keyframe.config == {"period_ms": 100.0}
    assert keyframe.knobs == ("cpu/policy0/max_khz", "cpu/policy2/max_khz")
    assert [(policy.name, policy.params) for policy in keyframe.policies] == [("wish", {"threshold": 0.1})]
    state = decode_state(keyframe.policies[0].state, {__name__})
    assert state.values.tobytes() == entries[1][1].policies[0].state.values.tobytes() and state.count == 7


def test_each_segment_can_be_read_on_its_own(tmp_path):
    entries = written(tmp_path, ticks=200, max_bytes=80_000)
    paths = segments(tmp_path)
    assert len(paths) > 3
    records = list(open_journal(paths[-1]))
    assert records[0].sequence == records[0].keyframe.sequence > 0
    for record in records:
        assert_same(record, *entries[record.sequence])
        assert np.array_equal(record.previous.counters, entries[record.sequence - 1][0].counters)


def test_the_bound_is_kept_and_the_oldest_goes_first(tmp_path):
    source = Source(small_layout())
    writer = JournalWriter(tmp_path, source.layout, Settings(), 60_000)
    for _ in range(800):
        writer.append(source.sweep(), source.decisions(), [], 0, 0)
        assert sum(os.path.getsize(path) for path in segments(tmp_path)) <= 60_000
    writer.close()
    sequences = [record.sequence for record in open_journal(tmp_path)]
    assert sequences == list(range(sequences[0], 800)) and sequences[0] > 0


def test_earlier_runs_count_towards_the_bound(tmp_path):
    for seed in range(6):
        written(tmp_path, ticks=60, max_bytes=60_000, seed=seed)
        assert sum(os.path.getsize(path) for path in segments(tmp_path)) <= 60_000
    runs = {record.keyframe.run for record in open_journal(tmp_path)}
    assert 1 < len(runs) < 6


@settings(max_examples=25)
@given(st.integers(min_value=1, max_value=10**6))
def test_a_tail_cut_anywhere_costs_only_the_last_record(tmp_path_factory, cut):
    directory = tmp_path_factory.mktemp("journal")
    entries = written(directory, ticks=10)
    path = segments(directory)[0]
    cut = cut % (os.path.getsize(path) // 2) + 1
    before = list(open_journal(directory))
    os.truncate(path, os.path.getsize(path) - cut)
    journal = open_journal(directory)
    records = list(journal)
    assert len(records) < len(before)
    for record in records:
        assert_same(record, *entries[record.sequence])
    assert all("cut short" in problem for problem in journal.problems) and len(journal.problems) <= 1


def test_damage_in_one_segment_does_not_reach_the_next(tmp_path):
    written(tmp_path, ticks=200, max_bytes=80_000)
    paths = segments(tmp_path)
    with open(paths[1], "r+b") as file:
        file.seek(os.path.getsize(paths[1]) // 2)
        file.write(b"\xff" * 8)
    journal = open_journal(tmp_path)
    sequences = [record.sequence for record in journal]
    assert len(journal.problems) == 1 and paths[1] in journal.problems[0] and "skipped" in journal.problems[0]
    assert sequences[-1] == 200
    gaps = [b - a for a, b in itertools.pairwise(sequences) if b != a + 1]
    assert len(gaps) == 1


def damage(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def frame_starts(path):
    """Where each frame of a segment begins."""
    with open(path, "rb") as file:
        data = file.read()
    at, starts = len(MAGIC), []
    while at < len(data):
        starts.append(at)
        at += HEADER.size + HEADER.unpack_from(data, at)[0]
    return starts


@pytest.mark.parametrize(("where", "what"), [(0, "length"), (4, "checksum"), (8, "kind"), (20, "payload")])
def test_damage_in_the_middle_is_counted_in_bytes_and_records_even_in_the_last_segment(tmp_path, where, what):
    written(tmp_path, ticks=40)
    (path,) = segments(tmp_path)
    starts = frame_starts(path)
    damage(path, starts[-11] + where, b"\x7f\x7f")
    journal = open_journal(tmp_path)
    kept = len(list(journal))
    lost_bytes = os.path.getsize(path) - starts[-11]
    assert (journal.loss.is_damage, journal.loss.n_bytes, journal.loss.records) == (True, lost_bytes, 11), what
    assert kept == 41 - 11
    assert str(journal.loss) == f"the journal is damaged: {lost_bytes} bytes and 11 records lost"


def test_what_looks_like_records_again_and_again_is_searched_in_a_time_that_grows_with_the_file(tmp_path):
    written(tmp_path, ticks=3)
    (path,) = segments(tmp_path)
    heads = HEADER.pack(1 << 18, 0, ord("R")) * (1 << 16)
    with open(path, "ab") as file:
        file.write(heads)
    begin = time.process_time()
    journal = open_journal(tmp_path)
    assert len(list(journal)) == 4 and journal.loss.n_bytes == len(heads)
    assert time.process_time() - begin < 1.0  # 2.4 s where each of them is looked at


def test_records_lost_between_two_segments_are_counted_by_the_runs_own_numbers(tmp_path):
    written(tmp_path, ticks=200, max_bytes=80_000)
    paths = segments(tmp_path)
    damage(paths[1], frame_starts(paths[1])[5] + 20, b"\x7f\x7f")
    os.unlink(paths[3])
    journal = open_journal(tmp_path)
    sequences = [record.sequence for record in journal]
    assert journal.loss.records == sequences[-1] - sequences[0] + 1 - len(sequences) > 0
    assert journal.loss.is_damage


@pytest.mark.parametrize("zeros", [0, 5, 3000])
def test_an_end_that_a_kill_or_a_power_cut_left_incomplete_is_no_damage(tmp_path, zeros):
    written(tmp_path, ticks=10)
    (path,) = segments(tmp_path)
    start = frame_starts(path)[-1]
    os.truncate(path, start + (0 if zeros else 30))
    os.truncate(path, os.path.getsize(path) + zeros)
    journal = open_journal(tmp_path)
    assert len(list(journal)) == 10
    assert (journal.loss.is_damage, journal.loss.records) == (False, 0)
    assert str(journal.loss) == f"the end of a run is cut short: {zeros or 30} bytes skipped"


def test_a_segment_of_a_killed_run_that_has_only_begun_is_no_damage(tmp_path):
    written(tmp_path, ticks=3)
    for size in (0, 7):
        (tmp_path / "journal-00000099.seg").write_bytes(MAGIC[:size])
        journal = open_journal(tmp_path)
        assert len(list(journal)) == 4
        assert (journal.problems, str(journal.loss)) == ([], "")


def test_a_directory_has_one_writer_at_a_time(tmp_path):
    first = JournalWriter(tmp_path, small_layout(), Settings())
    with pytest.raises(LockError, match=f"pid {os.getpid()} already writes a journal in this directory"):
        JournalWriter(tmp_path, small_layout(), Settings())
    first.close()
    JournalWriter(tmp_path, small_layout(), Settings()).close()


def test_an_outcome_is_kept_once_while_it_lasts(tmp_path):
    refusal = Outcome("cpu/policy0/max_khz", "refused", "busy")
    calm = Outcome("cpu/policy2/max_khz", "unchanged")
    written(tmp_path, ticks=5, outcomes=[refusal, calm])
    kept = [(record.sequence, outcome.status) for record in open_journal(tmp_path) for outcome in record.outcomes]
    assert kept == [(1, "refused")]


def test_a_change_of_policies_starts_from_a_new_keyframe(tmp_path):
    source = Source(small_layout())
    writer = JournalWriter(tmp_path, source.layout, Settings(), 10**9)
    entries = []
    for tick in range(10):
        decisions = source.decisions()
        if tick >= 5:
            other = Request.free(2)
            decisions = dataclasses.replace(
                decisions, policies=(*decisions.policies, PolicyDecision("other", Params(), None, other))
            )
        entries.append((source.sweep(), decisions))
        writer.append(*entries[-1], [], 0, 0)
    writer.close()
    records = list(open_journal(tmp_path))
    assert [len(record.requests) for record in records] == [1] * 5 + [2] * 5
    for record, entry in zip(records, entries, strict=True):
        assert_same(record, *entry)
    assert len(segments(tmp_path)) == 1


def test_a_node_without_gpus_zones_or_counters_can_be_journalled(tmp_path):
    bare = Layout((0,), (0,), (0,), (), 0, (), (), ())
    writer = JournalWriter(tmp_path, bare, Settings())
    nothing = np.zeros((1, 0), np.int64), np.zeros(0, np.int64), np.zeros((0, len(GPU_FIELDS)), np.int64)
    for time_ns in range(3):
        writer.append(RawSweep(time_ns, *nothing), Decisions(), [], 0, 0)
    writer.close()
    assert [record.raw.counters.shape for record in open_journal(tmp_path)] == [(1, 0)] * 3


def test_no_journal_is_one_line_with_its_place(tmp_path):
    with pytest.raises(JournalError, match="has no journal segments"):
        open_journal(tmp_path)
    with pytest.raises(JournalError, match="is not there"):
        open_journal(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot keep a journal here"):
        JournalWriter(tmp_path / "file", small_layout(), Settings())


def test_something_else_in_place_of_a_segment_is_skipped_with_a_remark(tmp_path):
    written(tmp_path, ticks=3)
    (tmp_path / "journal-00000099.seg").write_text("not a journal")
    journal = open_journal(tmp_path)
    assert len(list(journal)) == 4
    assert "is no journal segment" in journal.problems[0]


rows = st.integers(0, 40).flatmap(
    lambda size: st.tuples(
        *[hnp.arrays(np.int64, size, elements=st.integers(-(2**63), 2**63 - 1)) for _ in range(2)],
        *[hnp.arrays(np.uint64, size // 2).map(lambda bits: bits.view(np.float64)) for _ in range(2)],
        *[hnp.arrays(np.uint8, size // 3) for _ in range(2)],
    )
)


@given(rows)
def test_packing_is_exact_for_any_integers_floats_and_bytes(arrays):
    ints, ints_before, floats, floats_before, small, small_before = arrays
    before = Row(ints_before, floats_before, small_before)
    back = unpack(pack(Row(ints, floats, small), before), before)
    assert back.ints.tobytes() == ints.tobytes()
    assert back.floats.tobytes() == floats.tobytes()
    assert back.small.tobytes() == small.tobytes()


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@given(plain)
def test_a_state_of_plain_values_comes_back_as_it_was(value):
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(encode_state(value)))
    assert repr(decode_state(packed, ())) == repr(value)


@pytest.mark.parametrize(
    "array",
    [
        np.array([[1.5, np.nan], [-0.0, np.inf]]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((0, 4), np.int32),
        np.array(3.0),
        np.array([True, False]),
        np.frombuffer(struct.pack("<2Q", 0x7FF0_0000_0000_0001, 0xFFF8_0000_0000_1234), np.float64),
    ],
)
def test_an_array_keeps_type_shape_order_and_every_bit(array):
    back = decode_state(msgspec.msgpack.decode(msgspec.msgpack.encode(encode_state(array))), ())
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes("K") == array.tobytes("K")
    assert back.flags.c_contiguous == array.flags.c_contiguous
    assert back.flags.writeable


def test_a_state_names_only_classes_of_the_modules_allowed():
    tree = encode_state(State(np.zeros(2), 1))
    assert decode_state(tree, {__name__}).count == 1
    with pytest.raises(StateError, match="which no policy here uses"):
        decode_state(tree, {"nodectl.policies.api"})
    with pytest.raises(StateError, match="not there any more"):
        decode_state(["object", "os", "system", []], {"os"})


def test_a_state_that_cannot_be_kept_is_refused_by_its_type():
    with pytest.raises(StateError, match="generator"):
        encode_state({"rows": (n for n in range(3))})


def test_an_append_of_the_largest_node_costs_less_than_three_yardsticks(tmp_path):
    source = Source(large_layout())
    calm = [Outcome(name, "unchanged") for name in source.knobs]
    writer = JournalWriter(tmp_path, source.layout, Settings())
    costs, yardsticks = [], []
    for _ in range(200):
        sweep, decisions = source.sweep(), source.decisions()
        yardsticks.append(yardstick_ns())
        begin = time.thread_time_ns()
        writer.append(sweep, decisions, calm, 0, 0)
        costs.append(time.thread_time_ns() - begin)
    writer.close()
    assert statistics.median(costs) < 3 * statistics.median(yardsticks)


@pytest.mark.parametrize(
    ("state", "recorded"),
    [
        (WalkState(150.0, 0.5), "nodectl.power_walk"),
        (ThermalState(np.zeros(1, np.int64), np.zeros(1)), "nodectl.thermal"),
    ],
)
def test_a_class_that_has_moved_keeps_the_name_that_journals_have_for_it(state, recorded):
    tree = encode_state(state)
    assert tree[1] == recorded
    assert type(decode_state(tree, {type(state).__module__})) is type(state)
