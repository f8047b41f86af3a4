"""`make mutate` on a module of six lines, whose mutants are known."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.mutation.__main__ import judge
from tests.mutation.operators import mutants
from tests.mutation.python import try_mutants
from tests.mutation.results import Entry, Mutation, MutationError, Result, Target, read_entries
from tests.waiting import within

ROOT = Path(__file__).parents[2]

MODULE = '''"""A module."""

def steps(n: int) -> int:
    return n * 2

TWO = steps(1)

class Pair:
    def __init__(self, a, b):
        self.a = a
        self.b = b

    @property
    def larger(self) -> int:
        if self.a > self.b:
            return self.a
        return self.b

def count(n):
    while n > 0:
        n -= 1
    return n
'''

TESTS = """
import subprocess, sys
from sample import TWO, Pair, count

def test_the_larger():
    assert (Pair(1, 2).larger, Pair(2, 1).larger, TWO) == (2, 2, 2)

def test_counting_ends():
    assert count(3) == 0

def test_programs_see_the_mutant_too():
    subprocess.run([sys.executable, "-c", "import sample; assert sample.Pair(2, 1).b == 1"], check=True)
"""

TARGET = Target("sample.py", ("tests/test_sample.py",))
SURVIVOR = Mutation("sample.py", "Pair.larger", "if self.a > self.b:", "if self.a >= self.b:")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    shutil.copytree(ROOT / "tests" / "mutation", root / "tests" / "mutation")
    (root / "tests" / "__init__.py").touch()
    (root / "sample.py").write_text(MODULE)
    (root / "tests" / "test_sample.py").write_text(TESTS)
    return root


def contents(root: Path) -> Mapping[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_each_mutant_of_a_module_is_tried_and_the_tree_stays_as_it_is(tree: Path) -> None:
    before = contents(tree)
    results = list(try_mutants(tree, [TARGET], 1, 1))
    assert contents(tree) == before
    assert [one.mutation for one in results] == [one.mutation for one in mutants("sample.py", MODULE)]
    outcomes = {(one.mutation.where, one.mutation.after): one.outcome for one in results}
    assert [one.mutation for one in results if one.outcome == "survived"] == [SURVIVOR]
    assert outcomes["steps", "return n / 2"] == "killed", "it is called while the module is imported"
    assert outcomes["", "TWO = None"] == "killed", "at module level"
    assert outcomes["Pair.__init__", "pass"] == "killed"
    assert outcomes["count", "n += 1"] == "timeout"


def test_only_survivors_that_are_listed_pass_and_only_entries_that_survive_are_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = [Result(Mutation("sample.py", "f", "a", f"b{n}"), "killed", 0.1, n) for n in range(18)]
    results += [Result(SURVIVOR, "survived", 0.1, 15), Result(Mutation("sample.py", "f", "a", "c"), "timeout", 0.1)]
    results += [Result(Mutation("sample.py", "f", "a", "d"), "build-failed", 0.1)]
    entry = Entry(SURVIVOR, "equivalent", "both are the larger")
    assert judge(results, {}, is_complete=True) == 1
    assert "new survivor at line 15: sample.py: Pair.larger" in capsys.readouterr().out
    assert judge(results, {SURVIVOR: entry}, is_complete=True) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["sample.py", "20", "19", "1", "1", "1", "95.0%", "2"]
    gone = Mutation("sample.py", "f", "a", "b1")
    elsewhere = Mutation("other.py", "f", "a", "b1")
    listed = {one: Entry(one, "gap", "?") for one in (SURVIVOR, gone, elsewhere)}
    assert judge(results, listed, is_complete=True) == 0
    out = capsys.readouterr().out
    assert "stale entry, it does not survive any more: sample.py: f" in out
    assert "other.py" not in out, "its mutants were not tried"
    assert judge(results[15:], {SURVIVOR: entry}, is_complete=True) == 1
    assert "sample.py: score 80.0 %, at least 90 % is wanted" in capsys.readouterr().out


def test_a_listed_survivor_that_is_tried_although_it_is_not_in_the_sample_leaves_the_score_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = [Result(Mutation("sample.py", "f", "a", f"b{n}"), "killed", 0.1, n) for n in range(9)]
    results += [Result(SURVIVOR, "survived", 0.1, 15)]
    listed = Result(Mutation("sample.py", "f", "a", "c"), "survived", 0.1, 1, is_sampled=False)
    entries = {one: Entry(one, "equivalent", "?") for one in (SURVIVOR, listed.mutation)}
    assert judge([*results, listed], entries, is_complete=True) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split()[1:7] == ["10", "9", "1", "1", "0", "90.0%"] and "stale" not in out
    killed = Result(listed.mutation, "killed", 0.1, 1, is_sampled=False)
    assert judge([*results, killed], entries, is_complete=True) == 0
    assert "stale entry, it does not survive any more: sample.py: f" in capsys.readouterr().out


def test_tests_that_fail_without_a_mutation_are_an_error_that_says_so(tree: Path) -> None:
    (tree / "tests" / "test_sample.py").write_text("def test_wrong():\n    assert False\n")
    with pytest.raises(MutationError, match="fail without any mutation"):
        list(try_mutants(tree, [TARGET], 1, 1))
    (tree / "tests" / "test_sample.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(MutationError, match="nothing_of_that_name"):
        list(try_mutants(tree, [TARGET], 1, 1))


def test_a_driver_that_is_killed_leaves_the_tree_as_it_is_and_no_process(tree: Path, tmp_path: Path) -> None:
    running = tmp_path / "running"
    hanging = f"open({str(running)!r}, 'a').write(f'{{os.getpid()}}\\n'), time.sleep(600)"
    mutated = f"import os, time\nfrom sample import TWO\n\ndef test_it():\n    TWO == 2 or ({hanging})\n"
    (tree / "tests" / "test_sample.py").write_text(mutated)
    before = contents(tree)
    code = (
        "from pathlib import Path; from tests.mutation.python import *\n"
        "list(try_mutants(Path.cwd(), [Target('sample.py', ('tests/test_sample.py',))], 1, 1))"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    driver = subprocess.Popen([sys.executable, "-c", code], cwd=tree, env=environment)
    assert within(120, lambda: running.exists() and running.read_text().endswith("\n"))
    driver.send_signal(signal.SIGKILL)
    driver.wait(30)
    pids = [int(pid) for pid in running.read_text().split()]
    assert within(60, lambda: not any(is_alive(pid) for pid in pids))
    assert contents(tree) == before


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_only_a_reader_can_tell_is_no_mutant() -> None:
    source = '''"""Prose."""
from typing import TypeVar
T = TypeVar("T")
class A(object, metaclass=type):
    """Prose."""
    def f(self, a: "int | None") -> "str":
        assert a is not None, "never"
        for _ in zip(a, a, strict=True):
            raise ValueError(f"{a + 1} is wrong", "wrong")
'''
    assert [one.mutation.after for one in mutants("a.py", source)] == [
        "for _ in zip(None, a, strict=True):",
        "for _ in zip(a, None, strict=True):",
        "for _ in zip(a, strict=True):",
        "pass",
    ]


def test_an_entry_without_a_reason_is_refused_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "mutants.toml"
    path.write_text('[[mutant]]\nfile = "a.py"\nwhere = ""\nbefore = "a"\nafter = "b"\nkind = "gap"\nreason = ""\n')
    with pytest.raises(MutationError, match=r"\$\.mutant\[0\]\.reason"):
        read_entries(path)
    path.write_text(path.read_text().replace('""\n', '"w"\n'))
    assert list(read_entries(path)) == [Mutation("a.py", "w", "a", "b")]
    path.write_text(path.read_text() * 2)
    with pytest.raises(MutationError, match="listed twice"):
        read_entries(path)


def test_every_listed_survivor_still_describes_its_file() -> None:
    for one in read_entries(ROOT / "tests" / "mutants.toml"):
        assert (ROOT / one.file).is_file(), one
