"""What holds for the tests themselves."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECKS = ("assert_", "check_")
"""What the name of a helper begins with that fails the test by itself, ``np.testing.assert_array_equal`` among them."""
RAISES = ("raises", "warns", "fail")


def names(function: ast.FunctionDef) -> Iterator[str]:
    """What is called in it, without the modules and objects that it belongs to."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            called = node.func
            yield called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def asserts_something(function: ast.FunctionDef) -> bool:
    has_assert = any(isinstance(node, ast.Assert) for node in ast.walk(function))
    return has_assert or any(name.startswith(CHECKS) or name in RAISES for name in names(function))


def functions_of(source: str) -> list[ast.FunctionDef]:
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return [function for function in found if function.name.startswith("test_")]


def test_every_test_asserts_something_itself_or_calls_a_helper_that_is_named_as_a_check() -> None:
    files = [path for folder in ("tests", "hil_tests") for path in (ROOT / folder).rglob("test_*.py")]
    tests = [(path, function) for path in files for function in functions_of(path.read_text())]
    assert len(tests) > 1000
    empty = [f"{path}:{one.lineno} {one.name}" for path, one in tests if not asserts_something(one)]
    assert empty == []


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("run()", False),
        ("assertive(); x.recheck_all()", False),
        ("assert run()", True),
        ("for _ in x:\n        assert run()", True),
        ("assert_same(x)", True),
        ("np.testing.assert_array_equal(x, y)", True),
        ("with pytest.raises(E):\n        run()", True),
    ],
)
def test_an_assertion_is_found_where_there_is_one(body: str, is_found: bool) -> None:
    (function,) = functions_of(f"def test_it():\n    {body}\n")
    assert asserts_something(function) is is_found


def checkout(tmp_path: Path) -> Path:
    """A folder ``tests`` that has this one's rules."""
    tests = tmp_path / "checkout" / "tests"
    tests.mkdir(parents=True)
    for name in ("__init__.py", "conftest.py", "alone.py", "recorded.py"):
        shutil.copy(ROOT / "tests" / name, tests)
    return tests


def run_tests(tests: Path, *options: str) -> subprocess.CompletedProcess[str]:
    root = tests.parent
    command = [sys.executable, "-m", "pytest", "-ra", "--import-mode=importlib", "--rootdir", root, *options, tests]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment)


def test_where_files_run_side_by_side_a_test_that_looks_at_the_whole_machine_runs_alone(tmp_path: Path) -> None:
    tests, log = checkout(tmp_path), tmp_path / "log"
    (tests / "twin").mkdir()
    for name in ("twin/test_served_escapes_it.py", "test_a.py", "test_b.py", "test_c.py"):
        (tests / name).write_text(
            "import pathlib, time, pytest\n"
            "@pytest.mark.parametrize('n', range(10))\n"
            "def test_it(n):\n"
            f"    with pathlib.Path({str(log)!r}).open('a', buffering=1) as log:\n"
            f"        log.write('{name} begins\\n')\n"
            "        time.sleep(0.02)\n"
            f"        log.write('{name} ends\\n')\n"
            "    assert True\n"
        )
    done = run_tests(tests, "--numprocesses=3", "--dist=loadfile")
    assert "40 passed" in done.stdout, done.stdout + done.stderr
    lines = log.read_text().splitlines()
    for line, following in pairwise(lines):
        if line == "twin/test_served_escapes_it.py begins":
            assert following == "twin/test_served_escapes_it.py ends"
    assert any(line.endswith("begins") and following.endswith("begins") for line, following in pairwise(lines))


def test_what_a_file_that_runs_alone_shares_is_gone_before_the_next_such_file(tmp_path: Path) -> None:
    tests, log = checkout(tmp_path), tmp_path / "log"
    (tests / "twin").mkdir()
    for name in ("a", "b", "c"):
        (tests / "twin" / f"test_served_escapes_{name}.py").write_text(
            "import pathlib, time, pytest\n"
            "@pytest.fixture(scope='module')\n"
            "def shared():\n"
            f"    with pathlib.Path({str(log)!r}).open('a', buffering=1) as log:\n"
            f"        log.write('{name} begins\\n')\n"
            "        yield\n"
            f"        log.write('{name} ends\\n')\n"
            "@pytest.mark.parametrize('n', range(10))\n"
            "def test_it(n, shared):\n"
            "    time.sleep(0.02)\n"
        )
    done = run_tests(tests, "--numprocesses=3", "--dist=loadfile")
    assert "30 passed" in done.stdout, done.stdout + done.stderr
    lines = log.read_text().split()
    assert lines[::2] == [each for name in lines[::4] for each in (name, name)], lines


def test_tests_without_their_recorded_data_are_counted_in_one_line(tmp_path: Path) -> None:
    tests = checkout(tmp_path)
    (tests / "test_it.py").write_text(
        "import pytest\n"
        "from tests.recorded import needs_recorded\n"
        "@needs_recorded('swf')\n"
        "@pytest.mark.parametrize('n', range(3))\n"
        "def test_a(n): assert False\n"
        "@needs_recorded('eurora')\n"
        "def test_b(): assert False\n"
        "@pytest.mark.skip(reason='another')\n"
        "def test_c(): assert False\n"
        "def test_d(): assert True\n"
    )
    done = run_tests(tests)
    line = "4 tests need recorded data and were skipped; not here: ../shared/data/eurora, ../shared/data/swf"
    assert line in done.stdout.splitlines(), done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")] == [
        "SKIPPED [1] tests/test_it.py:8: another"
    ]
    assert "1 passed, 1 skipped, 4 without recorded data" in done.stdout
