"""The C half of ``make mutate``: what counts as a mutant, and that the tests judge the changed code and no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.mutation.c_code import Built, Judge, Mutant, assembly, build_without, functions_of, link, sample_of
from tests.mutation.c_code import without_comments as bare
from tests.mutation.results import Mutation, Target

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is missing: install gcc")

SOURCE = """#define TWICE 2 /* a number
   on two lines */
static const int start = 1;

int twice(int a) /* of it */
{
    return a * TWICE;
}

int more(int a,
         int b)
{
    return a + b + start;
}
"""


def test_comments_go_and_lines_stay() -> None:
    assert bare(SOURCE).splitlines()[:5] == [
        "#define TWICE 2",
        "",
        "static const int start = 1;",
        "",
        "int twice(int a)",
    ]


def test_a_line_is_named_after_its_function() -> None:
    assert functions_of(bare(SOURCE).splitlines()) == [*[""] * 4, *["twice"] * 4, "", *["more"] * 5]


def mutant(number: int) -> Mutant:
    return Mutant(Mutation("a.c", "f", f"a = {number};", "a = 0;"), number, "")


def test_a_sample_is_a_share_of_the_mutants_and_an_edit_elsewhere_keeps_it() -> None:
    mutants = [mutant(number) for number in range(2000)]
    sample = sample_of(mutants, 10, ())
    assert 150 < len(sample) < 250
    assert sample_of(mutants[1000:], 10, ()) == [one for one in sample if one in mutants[1000:]]
    assert sample_of(mutants, 1, ()) == mutants


def test_every_known_survivor_is_in_the_sample() -> None:
    mutants = [mutant(number) for number in range(100)]
    left_out = next(one for one in mutants if one not in sample_of(mutants, 10, ()))
    assert sample_of(mutants, 10, {left_out.mutation}) == [left_out, *sample_of(mutants, 10, ())]


def test_a_mutant_of_the_same_assembly_is_equivalent_and_a_warning_refuses_one(tmp_path: Path) -> None:
    built = Built("", tmp_path, ["gcc", "-std=c11", "-O2"], tmp_path)
    original = assembly(built, bare(SOURCE))
    assert assembly(built, SOURCE.replace("a * TWICE", "a + a")) == original
    assert assembly(built, SOURCE.replace("a * TWICE", "a * 3")) not in (original, b"")
    assert assembly(built, SOURCE.replace("a * TWICE", "TWICE")) == b"", "an unused parameter"
    assert assembly(built, SOURCE.replace("a * TWICE", "a *")) == b""


def test_the_tests_run_with_the_code_of_the_mutant(tmp_path: Path) -> None:
    target = Target("pmu/csrc/decode.c", ("tests/pmu/test_rapl.py",))
    built = build_without(ROOT, target.file, tmp_path)
    text = (ROOT / target.file).read_text()
    wrong = text.replace("step += rules->range", "step += 2 * rules->range")
    assert wrong != text
    judge = Judge(ROOT, target, built)
    try:
        for source, is_killed in (
            (text, False),
            (wrong, True),
            (text, False),
            (text.replace("values[i] = NAN;", "__builtin_trap();"), True),
        ):
            killer, _ = judge.ask(link(built, assembly(built, source), tmp_path / "mutant.so"))
            assert killer.startswith("tests/pmu/test_rapl.py::") == is_killed
    finally:
        judge.close()
