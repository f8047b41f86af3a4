"""The list of mutations made by hand stays true, and its runner can tell a net from a hole."""

from __future__ import annotations

import re

import pytest

from tests.mutation.by_hand import ROOT, Mutation, listed, mutated, survivors

LEASE = "nodectl/member/lease.py"
TEST = "tests/nodectl/test_lease.py::test_a_raise_counts_from_the_moment_it_is_taken"


@pytest.mark.parametrize("mutation", listed(), ids=lambda one: one.name)
def test_a_mutation_fits_the_code_and_names_tests_that_are_there(mutation: Mutation) -> None:
    changed = mutated(mutation)
    assert changed != (ROOT / mutation.file).read_text()
    if mutation.file.endswith(".py"):
        compile(changed, mutation.file, "exec")
    assert mutation.tests
    for test in mutation.tests:
        file, name = re.fullmatch(r"(\S+\.py)::(\w+)(?:\[.*\])?", test).groups()  # type: ignore[union-attr]
        assert f"\ndef {name}(" in (ROOT / file).read_text()


def test_names_of_mutations_are_unique() -> None:
    names = [one.name for one in listed()]
    assert len(set(names)) == len(names) > 80


def test_a_defect_that_its_tests_do_not_notice_survives_and_one_that_they_do_is_killed() -> None:
    noticed = Mutation("noticed", LEASE, "max(self.limit_mw, grant.cap_mw)", "self.limit_mw", (TEST,))
    missed = Mutation("missed", LEASE, "it answers a report that", "it replies to a report that", (TEST,))
    said: list[str] = []
    assert list(survivors([noticed, missed], said.append)) == [(missed, [TEST])]
    assert said == ["killed   noticed", "SURVIVED missed"]


def test_a_mutation_of_code_that_has_changed_is_named() -> None:
    with pytest.raises(ValueError, match=r"gone: nodectl/member/lease\.py has its text 0 times"):
        mutated(Mutation("gone", LEASE, "no such text", "", (TEST,)))
