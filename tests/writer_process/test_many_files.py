"""Clock limits that are written together: what is done at once, and what is left to the long way."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodectl.knobs import Knob, open_knob
from nodectl.knobs.api import KnobError
from nodectl.write.many_files import FEW, ManyFiles
from nodectl.write.writer import Writer
from pmu.system import system_ports
from tests.writer_process.tree_writer import clock_path, limits, make_tree

NAMES = [f"cpu/policy{policy}/max_khz" for policy in range(FEW + 2)]


def allow(name: str) -> None:
    """Any write."""


def knobs_of(tree: Path) -> list[Knob]:
    ports = system_ports(str(tree))
    return [open_knob(ports, name) for name in (*NAMES, "rapl/package-0/long_term_uw")]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "node", len(NAMES))


def test_a_write_that_is_not_allowed_any_more_ends_the_round(tree: Path) -> None:
    written: list[str] = []

    def check(name: str) -> None:
        if len(written) == 3:
            raise KnobError(f"{name}: not now")
        written.append(name)

    many = ManyFiles(knobs_of(tree), str(tree), check)
    with pytest.raises(KnobError, match=r"policy3.*not now"):
        many.write(dict.fromkeys(NAMES, 1_000_000))
    many.close()
    texts = [clock_path(tree, policy).read_text() for policy in range(len(NAMES))]
    assert texts == ["1000000\n"] * 3 + ["3200000\n"] * (len(NAMES) - 3)


def test_nothing_of_a_longer_number_is_left(tree: Path) -> None:
    many = ManyFiles(knobs_of(tree), str(tree), allow)
    for value in (1_000_000, 12, 900_000):
        assert many.write(dict.fromkeys(NAMES, value)) == dict.fromkeys(NAMES, value)
        assert {clock_path(tree, policy).read_text() for policy in range(len(NAMES))} == {f"{value}\n"}
    many.close()


def test_few_are_left_to_the_long_way_and_so_is_what_is_no_clock_or_is_gone(tree: Path) -> None:
    knobs = knobs_of(tree)
    clock_path(tree, 1).unlink()
    many = ManyFiles(knobs, str(tree), allow)
    assert many.write(dict.fromkeys(NAMES[:FEW], 1_000_000)) == {}
    assert many.present(NAMES[:FEW]) == {}
    found = many.write({**dict.fromkeys(NAMES, 1_000_000), "rapl/package-0/long_term_uw": 5})
    assert found == {name: 1_000_000 for name in NAMES if name != NAMES[1]}
    many.close()


def test_no_clock_is_raised_above_its_captured_value_together_with_others(tree: Path, tmp_path: Path) -> None:
    clock_path(tree, 0).write_text("1500000\n")
    seen: list[str] = []
    many = ManyFiles(knobs_of(tree), str(tree), seen.append)
    ports = system_ports(str(tree))
    found = limits(tree)
    with Writer(knobs_of(tree), str(tmp_path / "save"), "boot", ports.clock, may_raise=["*"], many=many) as writer:
        outcomes = writer.apply(dict.fromkeys(NAMES, 2_000_000))
    many.close()
    assert seen == NAMES[1:] and len(outcomes) == len(NAMES)
    assert limits(tree) == found
