"""When jobs begin and end, and which table a job begins with; the policy is one that says what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from nodectl.policies.parts.gpu_memory import KeptPhase
from nodectl.remembered.phase_file import Key, PhaseFiles, Table
from nodectl.remembered.program_memory import ProgramMemory
from tests.policies.gpu_nodes import layout, sample
from tests.remembered.test_phase_file import NOW, PHASE

NODE = layout()


class Policy:
    """Runs a program whose one phase draws ``watts``."""

    def __init__(self, watts: float) -> None:
        self.watts, self.measured = watts, False
        self.recalled: list[float] = []
        self.fits = float("nan")

    def keep(self, card: int) -> tuple[KeptPhase, ...]:
        return (msgspec.structs.replace(PHASE, watts=(self.watts, self.watts)),)

    def recall(self, card: int, phases: Sequence[KeptPhase]) -> None:
        self.recalled.append(phases[0].watts[0])

    def fit(self, card: int) -> float:
        return self.fits

    def distance(self, card: int, phases: Sequence[KeptPhase]) -> float:
        return abs(phases[0].watts[0] - self.watts) if self.measured else float("nan")


class Node:
    """A memory, the program that runs, and what was said."""

    def __init__(self, folder: Path, program: str | None, watts: float = 300.0) -> None:
        self.program, self.policy, self.said = program, Policy(watts), []
        self.files = PhaseFiles(folder)
        self.memory = ProgramMemory(
            self.files, self.policy, NODE, "550.54", self.said.append, lambda: self.program, lambda: NOW
        )

    def work(self, seconds: int, busy: float = 0.9) -> int:
        """How often the policy went on from another state meanwhile."""
        one = sample(NODE, gpu_utilization=busy)
        return sum(self.memory.look(one) for _ in range(seconds * 10))

    def tables(self, program: str) -> tuple[Table, ...]:
        self.memory.end()
        gpu = NODE.gpus[0]
        found = self.files.read(Key(program, gpu.name, "550.54", gpu.default_power_limit_w), NOW)
        return found.tables if found else ()


def after_a_run(folder: Path, program: str | None, watts: float = 300.0) -> None:
    node = Node(folder, program, watts)
    node.work(40)
    node.memory.end()


def test_a_named_program_is_recalled_before_its_first_sample(tmp_path: Path) -> None:
    after_a_run(tmp_path, "a")
    node = Node(tmp_path, "a")
    assert node.policy.recalled == [300.0]
    node.policy.fits = 0.9
    node.work(40)
    assert [table.runs for table in node.tables("a")] == [2]


def test_another_program_is_not_recalled_and_a_short_job_leaves_nothing(tmp_path: Path) -> None:
    after_a_run(tmp_path, "a")
    node = Node(tmp_path, "b")
    node.work(20)
    assert node.policy.recalled == [] and node.tables("b") == ()


def test_a_job_that_is_killed_has_left_what_there_was_a_minute_before(tmp_path: Path) -> None:
    node = Node(tmp_path, "a")
    node.work(61)
    writing = node.memory._writing
    assert writing is not None
    writing.join()
    assert len(node.files.all()[0]) == 1, "nothing has ended yet"


def test_two_programs_of_one_name_are_told_apart_by_what_they_draw(tmp_path: Path) -> None:
    after_a_run(tmp_path, "a", 300.0)
    changed = Node(tmp_path, "a", 200.0)
    changed.policy.fits = 0.1
    changed.work(40)
    assert [table.phases[0].watts[0] for table in changed.tables("a")] == [200.0, 300.0]
    for watts in (300.0, 200.0):
        node = Node(tmp_path, "a", watts)
        node.work(5)
        assert node.policy.recalled == [], "nothing was measured yet"
        node.policy.measured = True
        assert node.work(2) == 1
        assert node.policy.recalled == [watts]


def test_without_a_name_a_table_is_recalled_only_if_one_alone_resembles_what_runs(tmp_path: Path) -> None:
    after_a_run(tmp_path, "a", 300.0)
    after_a_run(tmp_path, "b", 299.5)
    after_a_run(tmp_path, "c", 100.0)
    for watts, expected in ((300.0, []), (200.0, []), (100.5, [100.0])):
        node = Node(tmp_path, None, watts)
        node.policy.measured = True
        node.work(5)
        assert node.policy.recalled == expected


def test_without_a_name_a_job_ends_when_the_gpus_rest(tmp_path: Path) -> None:
    node = Node(tmp_path, None)
    node.work(40)
    node.work(9, busy=0.0)
    assert node.files.all()[0] == []
    node.work(3, busy=0.0)
    assert len(node.tables("")) == 1


def test_the_next_job_of_a_node_is_another_one(tmp_path: Path) -> None:
    after_a_run(tmp_path, "b", 250.0)
    node = Node(tmp_path, "a")
    node.work(40)
    node.program = None
    node.work(1, busy=0.0)
    node.program = "b"
    assert node.work(1) == 1
    assert node.policy.recalled == [250.0]
    assert len(node.tables("a")) == 1


@pytest.mark.parametrize("content", [b"", b"rubbish\n"])
def test_a_damaged_file_is_said_and_written_again(tmp_path: Path, content: bytes) -> None:
    after_a_run(tmp_path, "a")
    (path,) = PhaseFiles(tmp_path).paths()
    path.write_bytes(content)
    node = Node(tmp_path, "a")
    assert len(node.said) == 1 and str(path) in node.said[0]
    node.work(40)
    assert [table.runs for table in node.tables("a")] == [1]
