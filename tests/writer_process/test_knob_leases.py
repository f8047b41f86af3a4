"""Leases and the permission to write, by a clock that the test sets."""

from __future__ import annotations

import pytest

from nodectl.knobs.api import KnobError
from nodectl.writer_process.knob_leases import LeasedKnob, Leases, Permission
from tests.nodectl.plain_knob import PlainKnob

SECOND = 10**9


class SetClock:
    def __init__(self) -> None:
        self.time_ns = 1000 * SECOND

    def now_ns(self) -> int:
        return self.time_ns


def test_a_lease_ends_at_its_instant_and_not_before() -> None:
    leases = Leases()
    assert leases.left_ns(0) is None
    leases.renew(["a", "b"], 10)
    leases.renew(["b"], 20)
    assert (leases.over(9), leases.over(10), leases.over(20)) == ([], ["a"], ["a", "b"])
    assert (leases.left_ns(4), leases.left_ns(12)) == (6, 0)
    leases.end(["a", "c"])
    assert leases.over(20) == ["b"] and len(leases) == 1


def test_a_request_younger_than_its_lease_is_carried_out_and_an_older_one_is_not() -> None:
    clock = SetClock()
    permission = Permission(clock.now_ns)
    assert permission.begin(clock.time_ns - SECOND + 1, SECOND)
    assert not permission.begin(clock.time_ns - SECOND, SECOND)
    assert permission.begin(clock.time_ns + 5 * SECOND, SECOND), "made in the future: as if made now"
    clock.time_ns += SECOND
    assert not permission.begin(clock.time_ns - SECOND, SECOND)


def test_a_pause_of_a_lease_between_two_writes_ends_the_request() -> None:
    clock = SetClock()
    permission = Permission(clock.now_ns)
    knobs = [LeasedKnob(PlainKnob(f"k{n}/limit_mw"), permission) for n in range(4)]
    permission.begin(clock.time_ns, SECOND)
    knobs[0].set(1)
    clock.time_ns += SECOND - 1
    knobs[1].set(1)
    clock.time_ns += SECOND
    with pytest.raises(KnobError, match=r"^k2/limit_mw: the writer was stopped for longer than the lease"):
        knobs[2].set(1)
    with pytest.raises(KnobError):
        knobs[3].set(1)
    assert [knob.read() for knob in knobs] == ["1", "1", "3000", "3000"]
    assert permission.is_late
    permission.end()
    knobs[0].restore("3000")
    assert knobs[0].read() == "3000", "what is put back needs no lease"


def test_a_process_that_is_not_the_newest_any_more_neither_writes_nor_puts_back() -> None:
    is_newest = True
    permission = Permission(SetClock().now_ns, lambda: is_newest)
    knob = LeasedKnob(PlainKnob(), permission)
    knob.set(1)
    is_newest = False
    for move in (lambda: knob.set(2), lambda: knob.restore("3000")):
        with pytest.raises(KnobError, match="another process has taken over"):
            move()
    assert knob.read() == "1" and permission.is_late
