"""The soak: an hour of each half runs, and what grows is noticed (``benchmarks/soak.py``)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.soak import HALVES, Row, problems

FLAT = [Row(float(hour), 60.0 + hour % 3 * 0.1, 50_000 + hour % 5, 17 + hour % 2, 2, 7, 0.5) for hour in range(5, 25)]


def test_a_flat_day_has_no_problem() -> None:
    assert problems(FLAT, 10.0) == []


@pytest.mark.parametrize(
    ("name", "an_hour", "said"),
    [
        ("rss_mb", 0.3, "memory grows by 7."),
        ("objects", 100, "more objects a day (at most 2000)"),
        ("descriptors", 1, "descriptors: "),
        ("threads", 1, "threads: "),
        ("files", 1, "files: "),
        ("mb", 1.0, "MB of files (at most 10)"),
    ],
)
def test_what_grows_is_named(name: str, an_hour: float, said: str) -> None:
    rows = [replace(row, **{name: getattr(row, name) + type(getattr(row, name))(an_hour * row.hour)}) for row in FLAT]
    (line,) = problems(rows, 10.0)
    assert said in line


@pytest.mark.parametrize("half", HALVES)
def test_a_few_minutes_of_each_half_run(half: str) -> None:
    run, most_mb = HALVES[half]
    rows = list(run(0.5, 300.0))
    assert [round(row.hour * 12) for row in rows] == [1, 2, 3, 4, 5, 6]
    assert all(row.rss_mb > 10 and row.objects > 1000 and row.files > 0 for row in rows)
    assert max(row.mb for row in rows) < most_mb
    assert max(row.descriptors for row in rows) <= min(row.descriptors for row in rows) + 3
