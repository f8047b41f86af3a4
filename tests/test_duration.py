"""Durations as people write and read them."""

from __future__ import annotations

import pytest

from foundation.shell.duration import seconds, shown
from foundation.shell.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        ("90s", 90),
        ("30min", 1800),
        ("1.5h", 5400),
        ("1d", 86_400),
        ("00:00:05", 5),
        ("1-02:03:04", 93_784),
        ("0.1s", 1),
    ],
)
def test_durations_are_read_as_batch_systems_write_them(text, expected_s):
    assert seconds(text) == expected_s


@pytest.mark.parametrize("text", ["", "90", "1:2:3", "00:60:00", "-5s", "1w", "inf", "1e3s", "9" * 30 + "s"])
def test_what_is_no_duration_is_one_line(text):
    with pytest.raises(UsageError, match="is no duration"):
        seconds(text)


def test_durations_are_shown_as_they_are_read():
    for duration_s in (0, 59, 3600, 86_399, 86_400, 10**6):
        assert seconds(shown(duration_s)) == duration_s
