"""How events are found: sysfs descriptions, what each sort of processor has, and the reasons when it has not."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pmu.instruments.counters
from pmu.cpulist import format_list, parse_list
from pmu.instruments.counters import EVENTS, PARANOID, PerfCounters
from pmu.instruments.event_source import CorePmu, NamedEvent, core_pmus, named_event
from pmu.instruments.perf_groups import Source
from pmu.readings import PmuError
from pmu.system import OsFiles
from tests.pmu.trees import CPU, EVENT_SOURCE, grow, type_tree

CYCLES, INSTRUCTIONS, CACHE_MISSES, STALLED_BACKEND, REF_CYCLES = 0, 1, 3, 8, 9  # enum perf_hw_id

X86_FORMAT: type_tree = {
    f"{EVENT_SOURCE}/cpu/format/{term}": bits
    for term, bits in {
        "event": "config:0-7",
        "umask": "config:8-15",
        "inv": "config:23",
        "cmask": "config:24-31",
    }.items()
}
MSR: type_tree = {
    f"{EVENT_SOURCE}/msr/type": 9,
    f"{EVENT_SOURCE}/msr/events/mperf": "event=0x02",
    f"{EVENT_SOURCE}/msr/format/event": "config:0-63",
}
PLAIN: type_tree = {f"{EVENT_SOURCE}/cpu/type": 4, f"{CPU}/online": "0-3", **X86_FORMAT}
HYBRID: type_tree = {
    f"{CPU}/online": "0-5",
    f"{EVENT_SOURCE}/cpu_core/type": 4,
    f"{EVENT_SOURCE}/cpu_core/cpus": "0-3",
    f"{EVENT_SOURCE}/cpu_atom/type": 10,
    f"{EVENT_SOURCE}/cpu_atom/cpus": "4-5",
}

type_have = Callable[..., None]


@pytest.fixture
def have(monkeypatch: pytest.MonkeyPatch) -> type_have:
    """Makes perf_event_open know only these (type, config, on CPUs); everything else gives ``error``."""

    def set_up(*known: tuple[int, int], error: int = errno.ENOENT) -> None:
        def try_open(source: Source, cpu: int) -> int:
            return 0 if (source.type_id, source.config) in known else error

        monkeypatch.setattr(pmu.instruments.counters, "try_open", try_open)

    return set_up


def test_named_events_are_encoded_by_the_format_of_their_pmu(tmp_path: Path) -> None:
    event = f"{EVENT_SOURCE}/cpu/events/stalled-cycles-backend"
    files = grow(tmp_path, PLAIN | {event: "event=0xb1,umask=0x01,inv,cmask=0x01"})
    # Sandy Bridge's UOPS_DISPATCHED.THREAD,c=1,i=1 as in arch/x86/events/intel/core.c
    assert named_event(files, "cpu", "stalled-cycles-backend") == NamedEvent(4, 0x018001B1)


def test_a_term_may_be_split_over_the_configuration_word(tmp_path: Path) -> None:
    amd: type_tree = {f"{EVENT_SOURCE}/cpu/format/event": "config:0-7,32-35"}
    files = grow(tmp_path, PLAIN | amd | {f"{EVENT_SOURCE}/cpu/events/ref-cycles": "event=0x120"})
    assert named_event(files, "cpu", "ref-cycles") == NamedEvent(4, 0x1_0000_0020)  # Zen 4: 0x100000120 without umask


@pytest.mark.parametrize("text", ["event=junk", "nonsense=1", "event=0x1ff", "period=3"])
def test_an_event_description_that_makes_no_sense_is_named(tmp_path: Path, text: str) -> None:
    files = grow(tmp_path, PLAIN | {f"{EVENT_SOURCE}/cpu/events/odd": text})
    with pytest.raises(PmuError, match=r"events/odd: cannot read the term"):
        named_event(files, "cpu", "odd")


def test_an_event_that_is_not_listed_is_none(tmp_path: Path) -> None:
    files = grow(tmp_path, PLAIN)
    assert named_event(files, "cpu", "stall_backend") is None
    assert named_event(files, "msr", "mperf") is None


def test_kinds_of_core_come_from_sysfs(tmp_path: Path) -> None:
    assert core_pmus(grow(tmp_path / "plain", PLAIN)) == (CorePmu("cpu", 4, None),)
    assert core_pmus(grow(tmp_path / "virtual", {f"{CPU}/online": "0"})) == (CorePmu("cpu", None, None),)
    hybrid = core_pmus(grow(tmp_path / "hybrid", HYBRID))
    assert hybrid == (CorePmu("cpu_atom", 10, frozenset({4, 5})), CorePmu("cpu_core", 4, frozenset(range(4))))
    assert [pmu.generic(INSTRUCTIONS) for pmu in hybrid] == [0xA_0000_0001, 0x4_0000_0001]


def test_sandy_bridge_has_every_event_as_a_generic_one(tmp_path: Path, have: type_have) -> None:
    have(*((0, event) for event in (CYCLES, INSTRUCTIONS, CACHE_MISSES, STALLED_BACKEND, REF_CYCLES)))
    counters = PerfCounters(grow(tmp_path, PLAIN | MSR))
    assert {event: counters.how(event) for event in EVENTS} == {event: event for event in EVENTS}


def test_zen_2_gets_reference_cycles_from_mperf_and_has_no_stalls(tmp_path: Path, have: type_have) -> None:
    have((0, CYCLES), (0, INSTRUCTIONS), (0, CACHE_MISSES), (9, 2))
    counters = PerfCounters(grow(tmp_path, PLAIN | MSR))
    assert counters.why_not("reference-cycles") is None
    assert counters.how("reference-cycles") == "msr/mperf/"
    assert counters.why_not("stalls") == "this processor has no such event: perf_event_open(stalls) gives ENOENT"


def test_stalls_may_be_an_event_that_the_pmu_lists(tmp_path: Path, have: type_have) -> None:
    have((0, CYCLES), (0, INSTRUCTIONS), (4, 0x140014A3))
    event = f"{EVENT_SOURCE}/cpu/events/cycle_activity.stalls_mem_any"
    counters = PerfCounters(grow(tmp_path, PLAIN | {event: "event=0xa3,umask=0x14,cmask=0x14"}))
    assert counters.how("stalls") == "cpu/cycle_activity.stalls_mem_any/"


def test_a_processor_with_two_kinds_of_core_gets_events_for_each(tmp_path: Path, have: type_have) -> None:
    have((0, 4 << 32 | STALLED_BACKEND), (0, 4 << 32 | CYCLES), (0, 10 << 32 | CYCLES))
    counters = PerfCounters(grow(tmp_path, HYBRID))
    assert counters.how("cycles") == "cycles"
    assert counters.why_not("stalls") is None
    assert "not on CPUs 4-5 (cpu_atom): this processor has no such event" in counters.how("stalls")


def test_a_virtual_machine_is_named_as_the_likely_reason(tmp_path: Path, have: type_have) -> None:
    have()
    counters = PerfCounters(grow(tmp_path, {f"{CPU}/online": "0"}))
    assert counters.why_not("cycles") == ("no hardware PMU: perf_event_open(cycles) gives ENOENT (virtual machine?)")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errno.EACCES, "EACCES with perf_event_paranoid 3: needs root or CAP_PERFMON"),
        (errno.EPERM, "EPERM with perf_event_paranoid 3"),
        (errno.EBUSY, "another program uses the counters"),
        (errno.EMFILE, "raise LimitNOFILE"),
        (errno.ENOSYS, "without perf events"),
        (errno.E2BIG, "gives E2BIG"),
    ],
)
def test_each_refusal_has_its_reason_in_one_line(tmp_path: Path, have: type_have, error: int, words: str) -> None:
    have(error=error)
    why = PerfCounters(grow(tmp_path, PLAIN | {PARANOID: "3"})).why_not("instructions")
    assert why is not None and words in why and "\n" not in why


def test_an_unknown_event_lists_the_known_ones(tmp_path: Path, have: type_have) -> None:
    have()
    why = PerfCounters(grow(tmp_path, PLAIN)).why_not("branches")
    assert why == f"unknown event 'branches'; known: {', '.join(EVENTS)}"


def test_opening_what_cannot_be_counted_is_an_error_with_the_reason(tmp_path: Path, have: type_have) -> None:
    have()
    with pytest.raises(PmuError, match="cannot count cycles: this processor has no such event"):
        PerfCounters(grow(tmp_path, PLAIN)).open((0,), ("cycles",))


def test_the_real_machine_either_counts_an_event_or_says_why_not() -> None:
    counters = PerfCounters(OsFiles())
    for event in EVENTS:
        why = counters.why_not(event)
        assert why is None or ("perf_event_open(" in why and "gives E" in why)


@given(st.sets(st.integers(0, 2000)))
def test_cpu_lists_survive_writing_and_reading(numbers: set[int]) -> None:
    assert parse_list(format_list(numbers)) == tuple(sorted(numbers))


def test_cpu_lists_may_be_separated_by_blanks() -> None:
    assert parse_list("0 8 16-18\n") == (0, 8, 16, 17, 18)
