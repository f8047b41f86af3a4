"""The kill campaign in small: one kill of each kind on a served node (`make bench` does hundreds)."""

from __future__ import annotations

import pytest

from benchmarks.kill_campaign import TARGETS, run, table
from tests.twin.served_node import why_not_served

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)


def test_whatever_is_killed_or_stopped_while_knobs_are_moved_leaves_every_knob_as_it_was() -> None:
    figures = table(run(tuple(TARGETS), seed=3))
    assert {
        target: (row["kills"], row["not_equal"], row["strange"]) for target, row in figures.items()
    } == dict.fromkeys(TARGETS, (1, 0, 0))
