"""When jobs begin and end, and which table a job begins with; the policy is one that says what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from foundation.phase_files import PhaseFiles
from foundation.wire.phase_messages import (
    Card,
    KeptPhase,
    Key,
    PhasesForget,
    PhasesForgotten,
    PhasesFound,
    PhasesKept,
    PhasesWanted,
    Table,
)
from nodectl.jobs.job_runner import RunningJob
from nodectl.member.phase_exchange import PhaseExchange
from nodectl.policies.parts.gpu_memory import HEARSAY, SEEN_ELSEWHERE
from nodectl.remembered.program_memory import ProgramMemory
from tests.policies.gpu_nodes import layout, sample
from tests.remembered.test_phase_files import NOW, PHASE

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


class Link:
    """Of a node with a job of the cluster, of rank ``rank``. ``down``: what comes from the cluster agent."""

    def __init__(self, rank: int = 0, keeps_phases: bool = True) -> None:
        self.sent, self.down, self.job = list[Any](), list[Any](), RunningJob((7, 1), "a", rank, keeps_phases)

    def send_phases(self, message: Any) -> None:
        self.sent.append(message)

    def phase_messages(self) -> list[Any]:
        return self._taken(PhasesFound)

    def phases_to_forget(self) -> list[Any]:
        return self._taken(PhasesForget)

    def of(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.sent if isinstance(one, kind)]

    def _taken(self, kind: type[Any]) -> list[Any]:
        found = [one for one in self.down if isinstance(one, kind)]
        self.down = [one for one in self.down if not isinstance(one, kind)]
        return found


class Node:
    """A memory, the program that runs, and what was said."""

    def __init__(self, folder: Path, program: str | None, watts: float = 300.0, link: Link | None = None) -> None:
        self.program, self.policy, self.said = program, Policy(watts), []
        self.files = PhaseFiles(folder)
        others = PhaseExchange(link, "n1", lambda: link.job) if link else None  # type: ignore[arg-type]
        self.memory = ProgramMemory(
            self.files, self.policy, NODE, "550.54", self.said.append, lambda: self.program, lambda: NOW, others
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


CARD = Card(NODE.gpus[0].name, "550.54", NODE.gpus[0].default_power_limit_w)
ELSEWHERE = Table(
    (msgspec.structs.replace(PHASE, watts=(250.0, 200.0), blocks=(90.0, 90.0)),), 4, NOW.isoformat(), "n9"
)


def found(job: int = 7, attempt: int = 1, card: Card = CARD) -> PhasesFound:
    return PhasesFound(job, attempt, [(card, ELSEWHERE)])


def test_what_this_node_has_not_it_requests_until_it_comes_and_begins_with_it(tmp_path: Path) -> None:
    link = Link()
    node = Node(tmp_path, "a", 250.5, link)
    node.work(6)
    assert link.of(PhasesWanted) == [PhasesWanted("n1", 7, 1, [CARD])] * 2
    link.down = [found(job=8), found(attempt=2), found(card=Card("another", "1", 1.0)), found()]
    assert node.work(5) == 0, "nothing was measured yet"
    node.policy.measured = True
    assert node.work(5) == 1
    assert node.policy.recalled == [250.0] and len(link.of(PhasesWanted)) == 2
    assert "4 runs of a" in node.said[0] and "measured on n9, recognised after" in node.said[0]
    node.policy.fits = 0.9
    node.work(40)
    assert [(table.runs, table.node) for table in node.tables("a")] == [(5, "")]
    (sent,) = link.of(PhasesKept)
    assert (sent.job, sent.attempt, sent.card, sent.table.runs) == (7, 1, CARD, 5)


def test_two_answers_that_come_at_once_are_one(tmp_path: Path) -> None:
    """The cluster agent was busy until this node had requested it again."""
    link = Link()
    node = Node(tmp_path, "a", 250.5, link)
    node.policy.measured = True
    link.down = [found(), found(), PhasesFound(7, 1, [(CARD, ELSEWHERE)] * 2)]
    assert node.work(5) == 1 and node.policy.recalled == [250.0]


def test_what_comes_from_elsewhere_leaves_the_highest_clock_to_be_measured(tmp_path: Path) -> None:
    link = Link()
    node, got = Node(tmp_path, "a", 250.5, link), list[KeptPhase]()
    node.policy.measured = True
    node.policy.recall = lambda card, phases: got.extend(phases)  # type: ignore[method-assign]
    link.down = [found()]
    node.work(2)
    assert got[0].blocks == (HEARSAY, SEEN_ELSEWHERE) and got[0].scatters == 1.0 and got[0].scatter2 > PHASE.scatter2


def test_nothing_is_requested_or_sent_where_the_cluster_agent_keeps_nothing_or_phases_are_here(tmp_path: Path) -> None:
    old = Link(keeps_phases=False)
    node = Node(tmp_path, "a", link=old)
    node.work(40)
    node.memory.end()
    assert old.sent == []
    link = Link(rank=1)
    node = Node(tmp_path, "a", link=link)
    node.work(40)
    node.memory.end()
    assert link.sent == [], "it had phases, and the first node of the job sends what they measure"


def test_what_comes_from_elsewhere_and_does_not_look_like_what_runs_is_not_used(tmp_path: Path) -> None:
    link = Link()
    node = Node(tmp_path, "a", 260.0, link)
    node.policy.measured, link.down = True, [found()]
    assert node.work(70) == 0 and node.policy.recalled == []


def test_what_comes_after_a_minute_of_work_is_too_late(tmp_path: Path) -> None:
    link = Link()
    node = Node(tmp_path, "a", link=link)
    node.work(61)
    link.down = [found()]
    assert node.work(2) == 0 and node.policy.recalled == []


def test_a_forgotten_program_is_deleted_and_what_runs_is_not_kept(tmp_path: Path) -> None:
    after_a_run(tmp_path, "a")
    after_a_run(tmp_path, "b")
    link = Link()
    node = Node(tmp_path, "a", link=link)
    node.work(35)
    link.down = [PhasesForget(3, [Key("a", CARD.card, CARD.driver, CARD.limit_w).digest, "0" * 16])]
    node.work(40)
    assert link.of(PhasesForgotten) == [PhasesForgotten("n1", 3)]
    assert node.tables("a") == () and len(node.tables("b")) == 1 and link.of(PhasesKept) == []


def test_a_forgotten_program_does_not_begin_with_what_was_on_its_way(tmp_path: Path) -> None:
    link = Link()
    node = Node(tmp_path, "a", 250.5, link)
    node.policy.measured = True
    link.down = [PhasesForget(3, [Key("a", CARD.card, CARD.driver, CARD.limit_w).digest]), found()]
    assert node.work(10) == 0 and node.policy.recalled == []


def test_files_that_cannot_be_deleted_are_said_and_not_confirmed(tmp_path: Path) -> None:
    link = Link()
    node = Node(tmp_path, None, link=link)
    (tmp_path / ("0" * 16 + ".phases")).mkdir()
    link.down = [PhasesForget(3, ["0" * 16])]
    node.work(1, busy=0.0)
    assert link.sent == [] and "cannot be forgotten" in node.said[0]
