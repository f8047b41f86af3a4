"""What comes from others is taken, or refused in one plain line; nothing else. ``make fuzz`` feeds new inputs."""

from __future__ import annotations

import msgspec
import pytest

from tests.fuzzing.parsers import parsers, problem_with, run

PARSERS = parsers()


@pytest.mark.parametrize("name", PARSERS)
def test_what_is_nearly_right_is_taken_or_refused_in_one_line(name: str) -> None:
    went, found = run(300, 1, {name: (1, PARSERS[name][1])})
    assert found == []
    assert went.total() == 300
    assert went[f"{name}: refused"] > 0 or went[f"{name}: taken"] > 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # found by this fuzzing
        ("saves", b'{"kind":"capture","v":[[]],"boot":"b","knob":"k","value":"1"}'),
        ("saves", b'{"kind":"capture","v":1,"boot":"b","knob":'),
        ("saves", b'{"kind":"wrote","v":1,"boot":"b","values":{"cpu/p\xd9licy0/max_khz":1200000}}'),
        ("store", msgspec.msgpack.encode(("change", 2, 1e308, "alice", "set 900 W by hand"))),
        ("store", msgspec.msgpack.encode(("budget", float("nan"), 9_000_000, b"[]"))),
    ],
)
def test_an_input_that_once_was_a_finding_is_none_any_more(name: str, text: bytes) -> None:
    assert problem_with(PARSERS[name][1], text) in ("", "taken")
