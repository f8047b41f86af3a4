"""Phases of programs at the cluster agent: who may leave what, who gets it, and that a forgotten user is forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cluster_agent.errors import ClusterError
from cluster_agent.history import phase_tables
from cluster_agent.history.phase_tables import AT_ONCE, MOST_KINDS, PhaseTables
from cluster_agent.jobs.job import Job, JobSpec
from foundation.phase_files import LASTS_DAYS
from foundation.wire.phase_messages import (
    KINDS_UP,
    MOST_PHASES,
    Card,
    Key,
    PhasesForget,
    PhasesForgotten,
    PhasesFound,
    PhasesKept,
    PhasesWanted,
    Table,
    kind_of,
    read_phase_message,
)
from foundation.wire.power_messages import WireError, pack, unpack
from tests.remembered.test_phase_files import PHASE

CARD = Card("NVIDIA A100-SXM4-80GB", "550.54", 400.0)
TABLE = Table((PHASE,), 3, "2001-01-01T00:00:00+00:00")


class Head:
    """Jobs 1 and 2 of ada and 3 of bob run the same program on nodes n1, n2 and n3, one each."""

    def __init__(self, at: Path) -> None:
        self.at, self.now_s, self.wall_s, self.is_on = at, 0.0, 1.8e9, True
        self.sent, self.said = list[tuple[str, Any]](), list[str]()
        spec = JobSpec(["/opt/solver", "in.dat"], 3600, "/")
        self.jobs = {
            number: Job(number, 1, user, spec, 0.0, "running", 1, [f"n{number}"])
            for number, user in ((1, "ada"), (2, "ada"), (3, "bob"))
        }
        self.restart()

    def restart(self) -> None:
        self.tables = PhaseTables(
            self.at / "phases", self.jobs.get, lambda node, one: bool(self.sent.append((node, one))) or True,
            lambda: self.wall_s, self.said.append, self.is_on,
        )  # fmt: skip

    def hear(self, *messages: Any) -> list[tuple[str, Any]]:
        """What was sent in answer."""
        self.sent.clear()
        self.now_s += 1.0
        self.tables.hear(self.now_s, messages)
        return list(self.sent)

    def forget(self, user: str = "ada", running: tuple[int, ...] = ()) -> str:
        self.sent.clear()
        self.now_s += 1.0
        return self.tables.forget(self.now_s, user, running, ["n1", "n2"])


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


def wanted(job: int, node: str = "", attempt: int = 1, card: Card = CARD) -> PhasesWanted:
    return PhasesWanted(node or f"n{job}", job, attempt, [card])


def kept(job: int, node: str = "", **given: Any) -> PhasesKept:
    return PhasesKept(node or f"n{job}", job, 1, CARD, replace(TABLE, **given))


def test_what_one_node_has_measured_the_next_one_gets(head: Head) -> None:
    assert head.hear(wanted(2)) == []
    head.hear(kept(1))
    ((node, found),) = head.hear(wanted(2))
    assert node == "n2" and isinstance(found, PhasesFound) and (found.job, found.attempt) == (2, 1)
    ((card, table),) = found.cards
    assert card == CARD and table.phases == TABLE.phases and table.runs == 3 and table.node == "n1"
    assert table.used_at.startswith("2027-01-15"), "the time is that of the head"
    head.hear(kept(2, runs=4))
    (row,) = head.tables.rows("")
    assert (row.user, row.program, row.node, row.runs) == ("ada", "/opt/solver", "n2", 4), "the newest alone"
    head.restart()
    assert len(head.hear(wanted(1))) == 1


@pytest.mark.parametrize(
    "other",
    [replace(CARD, card="NVIDIA H100"), replace(CARD, driver="560.1"), replace(CARD, limit_w=300.0)],
)
def test_another_card_driver_or_limit_gets_nothing(head: Head, other: Card) -> None:
    head.hear(kept(1))
    assert head.hear(wanted(2, card=other)) == []


def test_users_do_not_get_each_others_tables(head: Head) -> None:
    head.hear(kept(1))
    assert head.hear(wanted(3)) == []
    assert head.tables.rows("bob") == [] and len(head.tables.rows("ada")) == 1


def test_a_node_leaves_and_gets_nothing_of_a_job_that_it_does_not_have(head: Head) -> None:
    head.hear(kept(1, node="n3"), kept(99), replace(kept(1), attempt=2))
    assert head.tables.rows("") == []
    head.hear(kept(1))
    assert head.hear(wanted(2, node="n3"), wanted(2, attempt=2), wanted(99)) == []


def test_a_table_lasts_as_long_as_on_a_node(head: Head) -> None:
    head.hear(kept(1))
    head.wall_s += (LASTS_DAYS + 1) * 86_400.0
    assert head.hear(wanted(2)) == []


def test_a_damaged_file_is_said_and_written_again(head: Head) -> None:
    head.hear(kept(1))
    (path,) = (head.at / "phases").iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    assert head.hear(wanted(2)) == [] and str(path) in head.said[0] and len(head.said) == 1
    assert head.hear(wanted(2)) == [] and len(head.said) == 1, "once"
    head.hear(kept(1))
    assert len(head.hear(wanted(2))) == 1


def test_a_full_disk_is_said_and_nothing_else_fails(head: Head) -> None:
    (head.at / "phases").write_text("in the way")
    head.hear(kept(1), wanted(2))
    assert "cannot be" in head.said[0]


def test_only_so_many_messages_are_handled_in_a_second(head: Head) -> None:
    head.hear(kept(1))
    assert len(head.hear(*[wanted(2)] * (2 * AT_ONCE))) <= AT_ONCE
    head.now_s += 1.0
    assert len(head.hear(wanted(2))) == 1


def test_forgetting_deletes_here_and_on_nodes_and_comes_again_until_each_has_answered(head: Head) -> None:
    head.hear(kept(1), kept(3))
    line = head.forget()
    assert (
        line == "1 tables of phases of ada's programs are deleted here; 2 nodes delete theirs, each when it is reached"
    )
    (digest,) = {one.digests[0] for _, one in head.sent}
    assert [node for node, _ in head.sent] == ["n1", "n2"]
    assert digest == Key("/opt/solver", CARD.card, CARD.driver, CARD.limit_w).digest, "the name of the file on a node"
    assert [row.user for row in head.tables.rows("")] == ["bob"]
    head.hear(PhasesForgotten("n1", 1))
    head.restart()
    assert head.tables.pending(["n1", "n2"]) == ["n1", "n2"], "the answer was not on the disk yet: it is sent again"
    head.hear(PhasesForgotten("n1", 1))
    head.tables.step(head.now_s + 100.0, [])
    head.restart()
    assert head.tables.pending(["n1", "n2", "n9"]) == ["n2", "n9"]
    head.sent.clear()
    for second in range(0, 300, 10):
        head.tables.step(1e4 + second, ["n1", "n2"])
    assert len(head.sent) == 5 and {node for node, _ in head.sent} == {"n2"}
    stored = b"".join(file.read_bytes() for file in head.at.rglob("*") if file.is_file())
    assert b"ada" not in stored and b"solver" in stored, "of bob"


def test_what_a_job_of_a_forgotten_user_measures_is_not_kept_and_its_node_hears_of_it(head: Head) -> None:
    head.hear(wanted(1))
    assert "0 tables" in head.forget(running=(1,))
    assert [one.digests for _, one in head.sent] == [
        [Key("/opt/solver", CARD.card, CARD.driver, CARD.limit_w).digest]
    ] * 2
    head.restart()
    head.hear(kept(1))
    assert head.tables.rows("") == []
    head.hear(kept(2))
    assert len(head.tables.rows("ada")) == 1, "a later job is kept again"


def test_a_user_of_whom_nothing_is_kept(head: Head) -> None:
    assert head.forget("eve") == "no phases of eve's programs are kept" and head.sent == []


def test_a_list_that_cannot_be_written_is_an_error(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    head.hear(kept(1))
    (head.at / "phases-forgotten").mkdir()
    with pytest.raises(ClusterError, match="try again"):
        head.forget()


def test_there_are_never_more_tables_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_tables, "MOST_TABLES", 2)
    head = Head(tmp_path)
    for number in range(10, 15):
        spec = JobSpec([f"/opt/p{number}"], 60, "/")
        head.jobs[number] = Job(number, 1, "ada", spec, 0.0, "running", 1, [f"n{number}"])
        head.hear(kept(number))
    assert len(list((tmp_path / "phases").iterdir())) == 2


def test_made_up_cards_take_no_place_of_another_program(head: Head) -> None:
    head.hear(kept(3))
    for number in range(3 * MOST_KINDS):
        head.hear(replace(kept(1), card=replace(CARD, card=f"card {number}")))
        if number == MOST_KINDS:
            head.restart()
    assert len(head.tables.rows("ada")) == MOST_KINDS and len(head.tables.rows("bob")) == 1
    assert {row.card for row in head.tables.rows("ada")} == {f"card {2 * MOST_KINDS + at}" for at in range(MOST_KINDS)}


def test_nodes_that_do_not_confirm_keep_no_other_from_its_tables(head: Head) -> None:
    head.hear(kept(1), kept(3))
    head.forget()
    many = [f"c{number}" for number in range(4 * AT_ONCE)]
    for _ in range(8):
        head.now_s += 0.3
        head.tables.step(head.now_s, many)
        head.sent.clear()
        head.tables.hear(head.now_s, [wanted(3)])
        assert [node for node, _ in head.sent] == ["n3"]


def test_where_the_site_shares_none_nothing_is_kept_and_what_there_is_can_be_forgotten(head: Head) -> None:
    head.hear(kept(1))
    head.is_on = False
    head.restart()
    assert head.hear(kept(3), wanted(2)) == [] and [row.user for row in head.tables.rows("")] == ["ada"]
    head.forget()
    head.hear(PhasesForgotten("n1", 1))
    assert head.tables.pending(["n1", "n2"]) == ["n2"] and head.tables.rows("") == []


def through_the_wire(message: Any) -> Any:
    frame = pack(kind_of(message), message, 3)
    return read_phase_message(unpack(frame, dict.fromkeys(KINDS_UP, 1 << 16)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"watts": (330.0, 801.0)}, {"watts": (330.0, float("nan"))}, {"watts": (330.0, 0.0)}, {"traffic": (1.6, 0.5)},
        {"clocks_mhz": (1095, 1410)}, {"clocks_mhz": (1410, 1410)}, {"clocks_mhz": (1 << 40, 1095)},
        {"clocks_mhz": (1410, 0)},
        {"clocks_mhz": (1410,)}, {"clocks_mhz": (), "blocks": (), "traffic": (), "watts": ()},
        {"blocks": (1e9, 1.0)}, {"scatter2": float("inf")}, {"jump2": 1e7}, {"share": -0.1}, {"utilization": 2.0},
        {"after": (0.1,) * 9}, {"after": (2.0,)},
    ],
)  # fmt: skip
def test_phases_that_nobody_can_have_measured_are_refused_on_the_wire(wrong: dict[str, Any]) -> None:
    assert through_the_wire(kept(1)) == kept(1)
    with pytest.raises(WireError):
        through_the_wire(kept(1, phases=(replace(PHASE, **wrong),)))


@pytest.mark.parametrize("phases", [(), (PHASE,) * (MOST_PHASES + 1)])
def test_so_are_none_and_too_many(phases: tuple[Any, ...]) -> None:
    with pytest.raises(WireError, match="phases"):
        through_the_wire(kept(1, phases=phases))


def test_digests_are_names_of_files_and_nothing_else() -> None:
    for digest in ("../../etc/passwd", "0" * 15, "G" * 16, "0" * 16 + "\n"):
        frame = pack("phases-forget", PhasesForget(1, [digest]), 3)
        with pytest.raises(WireError):
            read_phase_message(unpack(frame, {"phases-forget": 1 << 16}))


def test_a_node_finds_the_files_that_it_had_before_there_were_users_in_keys() -> None:
    key = Key("/opt/solver", "card", "550", 400.0)
    assert msgspec.json.encode(key) == b'{"program":"/opt/solver","card":"card","driver":"550","limit_w":400.0}'
