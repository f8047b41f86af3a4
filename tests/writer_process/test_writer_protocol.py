"""What is no request of this protocol writes nothing and ends nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodectl.knobs.api import Outcome
from nodectl.writer_process.knob_leases import boottime_ns
from nodectl.writer_process.writer_protocol import (
    MOST_BYTES,
    MOST_KNOBS,
    VERSION,
    Applied,
    Apply,
    Done,
    Failed,
    Hello,
    LimitRestores,
    Outcomes,
    ProtocolError,
    PublishJoules,
    Restore,
    RestoreAll,
    SiteLocks,
    Start,
    Started,
    Welcome,
    decode_reply,
    decode_request,
    encode,
    type_reply,
    type_request,
)
from nodectl.writer_process.writer_server import Served, Session
from pmu.system import system_ports
from tests.writer_process.tree_writer import clock_path, limit_path, limits, make_tree

NUMBERS = st.integers(-(2**64), 2**64)
SMALL = st.integers(-2, 12)
VALUES = st.one_of(st.integers(-(2**53), 2**53), st.sampled_from([0, 1, 1_500_000, 90_000_000]))


def requests() -> st.SearchStrategy[type_request]:
    """Well-formed requests of arbitrary content: what the types allow, and numbers of knobs that there are not."""
    knobs = st.lists(st.integers(0, 8), max_size=6)
    pairs = st.lists(st.tuples(st.integers(0, 8), VALUES), max_size=6)
    names = st.one_of(st.text(max_size=20), st.sampled_from(["cpu/policy0/max_khz", "rapl/package-0/long_term_uw"]))
    now = st.builds(boottime_ns)
    made = st.one_of(now, now, now, st.just(0), st.integers(0, 2**63 - 1))
    return st.one_of(
        st.builds(Hello, SMALL),
        st.just(Start()),
        st.builds(
            lambda made_ns, lease_ms, given: Apply(made_ns, lease_ms, [at for at, _ in given], [v for _, v in given]),
            made, st.integers(1, 300_000), pairs,
        ),
        st.builds(LimitRestores, made, st.dictionaries(names, VALUES, max_size=3)),
        st.builds(SiteLocks, st.dictionaries(names, st.integers(0, 99_999), max_size=3)),
        st.builds(Restore, knobs),
        st.just(RestoreAll()),
        st.builds(PublishJoules, st.text(max_size=20)),
    )  # fmt: skip


@pytest.mark.parametrize(
    "message",
    [
        Hello(1), Start(), Apply(1, 1000, [0, 1], [2, 3]), LimitRestores(1, {"a": 1}), Restore([1]), RestoreAll(),
        SiteLocks({"gpu/0/sm_clock_mhz": 1095}), PublishJoules("node - 1.000"),
        Welcome(1, 2, [], 3), Started([Outcome("a", "restored")], ["b"], {"a": "1"}, {"a": 2}, {"a": 3}, {"a": 3}),
        Applied([1], [Outcome("a", "refused", "why", "lock bit")], 0, {"a": 3}, {}),
        Outcomes([]), Failed("lock", "why"),
    ],
)  # fmt: skip
def test_a_message_arrives_as_it_was_sent(message: type_request | type_reply) -> None:
    is_request = isinstance(
        message, Hello | Start | Apply | LimitRestores | SiteLocks | Restore | RestoreAll | PublishJoules
    )
    assert (decode_request if is_request else decode_reply)(encode(message)) == message


@given(st.binary(max_size=200))
def test_whatever_bytes_come_are_a_request_or_an_error_of_this_protocol(data: bytes) -> None:
    try:
        assert isinstance(decode_request(data), type_request)
    except ProtocolError as error:
        assert str(error).startswith("not a request to the writer: ")


@pytest.mark.parametrize(
    "wrong",
    [
        ["apply", 1, 1000, [0], [1.5]],
        ["apply", 1, 1000, [0], [True]],
        ["apply", 1, 1000, [-1], [1]],
        ["apply", 1, 1000, [MOST_KNOBS], [1]],
        ["apply", 1, 1000, [0], [2**53 + 1]],
        ["apply", 1, 0, [0], [1]],
        ["apply", 1, 10**9, [0], [1]],
        ["apply", -1, 1000, [0], [1]],
        ["apply", 1, 1000, [0, 1], [1]],
        ["apply", 1, 1000, [0] * (MOST_KNOBS + 1), [1] * (MOST_KNOBS + 1)],
        ["apply", 1, 1000, [0], [1], "more"],
        ["limit", 1, {"x" * 201: 1}],
        ["limit", 1, {"x": float("nan")}],
        ["site-locks", {"x": -1}],
        ["site-locks", {"x": 100_000}],
        ["write", "/etc/passwd", "0"],
        [], {}, None, "start",
    ],
)  # fmt: skip
def test_a_request_out_of_its_bounds_is_none(wrong: object) -> None:
    with pytest.raises(ProtocolError):
        decode_request(msgspec.msgpack.encode(wrong))


def test_an_answer_that_is_too_long_loses_its_details_and_nothing_else() -> None:
    outcomes = [Outcome(f"cpu/policy{n}/max_khz", "refused", "x" * 200, "lock bit") for n in range(1000)]
    data = encode(Outcomes(outcomes))
    assert len(data) <= MOST_BYTES
    found = decode_reply(data)
    assert isinstance(found, Outcomes)
    assert [(one.knob, one.status, one.reason) for one in found.outcomes] == [
        (one.knob, one.status, one.reason) for one in outcomes
    ]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Served]:
    root = make_tree(tmp_path_factory.mktemp("node"), policies=4)
    return root, Served(system_ports(str(root)), str(tmp_path_factory.mktemp("state")))


@given(st.lists(requests(), max_size=8))
def test_whatever_is_requested_no_knob_leaves_its_range_and_all_are_back_at_the_end(
    served: tuple[Path, Served], asked: list[type_request]
) -> None:
    root, node = served
    found = limits(root)
    session = Session(node, lambda line: None)
    try:
        for request in (Start(), *asked):
            reply = session.answer(decode_request(encode(request)))
            assert decode_reply(encode(reply)) == reply
            assert all(800_000 <= int(clock_path(root, policy).read_text()) <= 3_200_000 for policy in range(4))
            assert int(limit_path(root).read_text()) >= 1_000_000
    finally:
        session.answer(LimitRestores(boottime_ns(), {}))
        session.end("the example is over")
    assert limits(root) == found


def test_before_the_start_and_for_another_version_there_is_only_an_error(served: tuple[Path, Served]) -> None:
    _, node = served
    session = Session(node, lambda line: None)
    assert session.answer(Hello(VERSION + 1)) == Failed(
        "request", f"the agent speaks version {VERSION + 1} of this protocol, the writer {VERSION}"
    )
    assert session.answer(Apply(boottime_ns(), 1000, [0], [1])) == Failed(
        "request", "the first request must be a start"
    )
    welcome = session.answer(Hello(VERSION))
    assert isinstance(welcome, Welcome)
    assert [(entry.name, entry.low, entry.high) for entry in welcome.knobs] == [
        *[(f"cpu/policy{policy}/max_khz", 800_000, 3_200_000) for policy in range(4)],
        ("rapl/package-0/long_term_uw", 1_000_000, 200_000_000),
    ]


def test_a_restore_under_a_grant_does_not_leave_the_range_either(served: tuple[Path, Served]) -> None:
    root, node = served
    found = limits(root)
    session = Session(node, lambda line: None)
    session.answer(Start())
    session.answer(Apply(boottime_ns(), 300_000, [0], [1_000_000]))
    assert session.answer(LimitRestores(boottime_ns(), {"cpu/policy0/max_khz": 5})) == Done()
    session.answer(RestoreAll())
    assert clock_path(root, 0).read_text().strip() == "800000"
    session.answer(LimitRestores(boottime_ns(), {}))
    session.end("the test is over")
    assert limits(root) == found
