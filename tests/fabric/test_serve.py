"""What the cluster agent keeps, refuses and says, without processes: store, settings, schedule."""

import re
import sqlite3
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cluster_agent.budget.accounts import NONE
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.kept_counts import Change, DeposedError
from cluster_agent.budget.ledger import Terms
from cluster_agent.budget.sharers.view import Job, Tag
from cluster_agent.cli import main
from cluster_agent.commands import nodes as nodes_command
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.fabric.allowed import Allowed, Entry
from cluster_agent.fabric.ask import ask
from cluster_agent.serve.budget_service import NEED_S, Partition
from cluster_agent.serve.config import BudgetSettings, JobSettings, NodeSettings, Settings, read_settings
from cluster_agent.serve.live_budget.budget_schedule import read_schedule, refuse_past
from cluster_agent.serve.live_sharing import Sharing
from cluster_agent.serve.people_protocol import ListNodes
from cluster_agent.serve.server import Server
from cluster_agent.store.database import VERSION, Database
from cluster_agent.store.ledger_store import BudgetStore, SqliteLedgerStore
from foundation.wire.keys import KeyFileError, read_public
from lab.cluster_demo.emulated_partition import free_port
from nodectl.member.lease import NodeLease
from tests.fabric.links import DECLARED, S, pair, report


def commit(store: SqliteLedgerStore, epoch: int, counts_mw: dict[str, int], changed: list[int] | None = None) -> None:
    nodes = {at: (name, DECLARED) for at, name in enumerate(counts_mw) if changed is None}
    places = np.array(range(len(counts_mw)) if changed is None else changed, np.int64)
    store.commit(epoch, nodes, places, np.array(list(counts_mw.values()), np.int64))


def test_what_was_committed_is_there_after_a_restart_and_certain_while_the_machine_was_up(tmp_path):
    store = SqliteLedgerStore(Database(tmp_path / "a.db"), "boot-1")
    first = store.take_over()
    assert first.is_certain and first.names == []
    counts_mw = {f"n{n}": 300_000 + n for n in range(1000)} | {"never": NONE}
    commit(store, first.epoch, counts_mw)
    counts_mw["n300"] = 5
    commit(store, first.epoch, counts_mw, changed=[300])
    again = SqliteLedgerStore(Database(tmp_path / "a.db"), "boot-1").take_over()
    assert (again.epoch, again.is_certain) == (first.epoch + 1, True)
    assert dict(zip(again.names, again.counts_mw.tolist(), strict=True)) == counts_mw
    assert again.declarations == [DECLARED] * 1001
    assert not SqliteLedgerStore(Database(tmp_path / "a.db"), "boot-2").take_over().is_certain


def test_who_has_not_the_newest_epoch_commits_nothing(tmp_path):
    old, new = (SqliteLedgerStore(Database(tmp_path / "a.db"), "boot-1") for _ in range(2))
    first, second = old.take_over().epoch, new.take_over().epoch
    assert second > first
    for nodes in ({}, {"n0": 300_000}):
        with pytest.raises(DeposedError, match="another cluster agent has taken over"):
            commit(old, first, nodes)
    again = new.take_over(at_least=50)
    assert (again.names, again.epoch) == ([], 50)


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path):
    Database(tmp_path / "a.db").close()
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("UPDATE schema_version SET version = ?", (VERSION + 1,))
    before = (tmp_path / "a.db").read_bytes()
    with pytest.raises(ClusterError, match="this clusterctl knows only"):
        Database(tmp_path / "a.db")
    assert (tmp_path / "a.db").read_bytes() == before


def test_a_store_whose_schema_is_no_text_is_damaged_in_one_line(tmp_path):
    database = Database(tmp_path / "a.db")
    database.rows("CREATE TABLE more (abc)")
    database.rows("PRAGMA writable_schema = ON")
    damaged = b"CREATE TABLE more (a\xffc)"
    database.rows("UPDATE sqlite_master SET sql = CAST(? AS TEXT) WHERE name = 'more'", (damaged,))
    database.close()
    with pytest.raises(ClusterError, match=r"a\.db: cannot (open|read) the store: it is damaged: "):
        Database(tmp_path / "a.db").rows("SELECT * FROM more")


def test_a_store_that_was_killed_while_its_tables_were_made_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr("cluster_agent.store.database.SCHEMA", "CREATE TABLE more (a); CREATE TABLE more (a)")
    with pytest.raises(ClusterError, match="more"):
        Database(tmp_path / "a.db")
    monkeypatch.undo()
    database = Database(tmp_path / "a.db")
    assert database.rows("SELECT name FROM sqlite_master WHERE name = 'more'") == []


def test_what_is_no_store_is_one_line(tmp_path):
    (tmp_path / "a.db").write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(ClusterError, match=r"a\.db: cannot open the store"):
        Database(tmp_path / "a.db")


def test_a_queue_of_nodes_that_nobody_has_allowed_or_heard_is_an_alarm_until_they_are_there(tmp_path):
    now_s, said = [0.0], list[str]()
    given = Settings(
        listen=f"tcp://127.0.0.1:{free_port()}", insecure=True, keys=str(tmp_path), store=str(tmp_path / "a.db"),
        socket=str(tmp_path / "s"), budget=BudgetSettings(w=700.0), nodes=NodeSettings(tdp_w=500.0),
        jobs=JobSettings(queues="day=n0 night=n[1-2]"),
    )  # fmt: skip
    server = Server(given, said.append, lambda: now_s[0])
    allowed = Allowed(tmp_path)

    def at(time_s: float) -> str:
        now_s[0] = time_s
        server._expect_nodes(time_s)
        return "; ".join(text for text in server.partition.alarms.texts if "queue" in text)

    try:
        server.partition.hear(0.0, [report("n1", declaration=DECLARED)])
        assert at(1.0) == "", "without a list, nodes have a minute to report"
        why = "jobs of that queue may wait for ever"
        assert at(61.0) == f"n0 of queue day, n2 of queue night are no nodes of this partition: {why}"
        allowed.allow(Entry("node", "n0", pair().public))
        server._allowed.refresh()
        assert at(70.0) == f"n2 of queue night is no node of this partition: {why}"
        server.partition.hear(71.0, [report("n2", declaration=DECLARED)])
        assert at(75.0) == "" and said[-1].startswith("the alarm is over: n2 of queue night")
    finally:
        server.close()


def partition(
    tmp_path: Path, said: list[str], sharing: Sharing | None = None, gap_s: float = 5.0
) -> tuple[Partition, Database]:
    database = Database(tmp_path / "a.db")
    store = SqliteLedgerStore(database, "boot-1")
    terms, sharing = Terms(failing_together=0), sharing or Sharing("fspc")
    made = Partition(store, terms, BudgetLine(900_000), sharing, 0.0, say=said.append, gap_s=gap_s)
    return made, database


def test_a_full_disk_grants_nothing_raises_an_alarm_and_ends_with_it(tmp_path):
    said: list[str] = []
    made, database = partition(tmp_path, said)
    pages = database.rows("PRAGMA page_count")[0][0]
    database.rows(f"PRAGMA max_page_count = {pages}")
    leases = [NodeLease(f"node-{n}" + "x" * 60, "boot-1", DECLARED, 200_000, 0) for n in range(200)]
    made.ledger.budget.set(200 * 300_000)
    grants = made.hear(1.0, [lease.report(1 * S, 100_000) for lease in leases])
    assert grants == []
    assert any("full" in line for line in said), said
    assert made.ledger.total_mw == 200 * DECLARED.tdp_mw, "nothing was counted as granted"
    database.rows("PRAGMA max_page_count = 100000")
    grants = made.hear(10.0, [lease.report(10 * S, 100_000) for lease in leases])
    assert len(grants) == 200
    assert said[-1].startswith("the alarm is over:")


def test_a_raise_that_waits_says_what_for(tmp_path):
    made, _ = partition(tmp_path, [])
    first, second = (NodeLease(f"n{n}", "boot-1", DECLARED, 500_000, 0) for n in range(2))
    for grant in made.hear(1.0, [first.report(1 * S, 400_000)]):
        assert first.take(1 * S, grant) == ""
    first.confirm("seen")
    made.hear(1.2, [first.report(round(1.2 * S), 400_000)])
    made.hear(2.0, [second.report(2 * S, 100_000)])
    lines = made.why(2.0, "n1").lines
    assert lines[0] == "state: joining"
    row = {one.name: one for one in made.nodes(2.0)}["n0"]
    assert (row.granted_w, row.state) == (450.0, "capped")
    with pytest.raises(WrongUseError, match=r"no node is called 'n7' \(nearest: n[01]\)"):
        made.why(2.0, "n7")


def test_what_a_cap_waits_for_is_one_word_with_who_frees_the_watts(tmp_path):
    made, _ = partition(tmp_path, [], gap_s=0.1)
    first, second = (NodeLease(f"n{n}", "boot-1", DECLARED, 500_000, 0) for n in range(2))
    told(made, 1.0, first)
    told(made, 2.0, first)
    assert made.why(2.0, "n0").waits_for == ""
    told(made, 3.0, second)
    why = made.why(3.0, "n1")
    assert (why.waits_for, why.wanted_w, why.granted_w) == ("watts", 450.0, 200.0)
    assert why.freeing_w["n0"] == 50.0
    made.hear(3.2, [first.report(round(3.2 * S), 100_000)])
    assert made.why(3.2, "n0").waits_for == "confirmation"
    made.alarms.set("store", "the disk is full")
    assert made.why(3.2, "n1").waits_for == "store"
    assert "waiting for 450 W: the store cannot be written" in made.why(3.2, "n1").lines


def test_a_silent_node_is_listed_as_such_with_what_it_counts(tmp_path):
    made, _ = partition(tmp_path, [])
    lease = NodeLease("n0", "boot-1", DECLARED, 500_000, 0)
    made.hear(1.0, [lease.report(1 * S, 400_000)])
    assert not any("no report" in line for line in made.why(2.0, "n0").lines)
    made.turn(99.0)
    told = [line for line in made.why(99.0, "n0").lines if "no report" in line or "waiting for the node" in line]
    assert len(told) == 1 and told[0].startswith("no report for 98 s: it counts the most that it may draw")


def told(made: Partition, now_s: float, *leases: NodeLease, is_leaving: bool = False, tag: str = "") -> None:
    """They report and take what is granted."""
    reports = [lease.report(round(now_s * S), 100_000, is_leaving) for lease in leases]
    grants = made.hear(now_s, [msgspec.structs.replace(one, tag=tag) for one in reports])
    for lease, one in zip(leases, reports, strict=True):
        for grant in grants:
            if grant.node == one.node and not lease.take(round(now_s * S), grant):
                lease.confirm("seen")


def waits_s(made: Partition, now_s: float) -> float | None:
    """How long until the next plan, as people see it; None where none is due."""
    found = re.search(r"the next plan is due in ([0-9.]+) s", "\n".join(made.why(now_s, "n0").lines))
    return float(found[1]) if found else None


def test_starts_and_the_budget_are_planned_for_at_once_and_all_else_after_the_gap(tmp_path):
    running: list[Job] = []
    made, _ = partition(tmp_path, [], Sharing("aapc", lambda: running), gap_s=4.0)
    first, second = (NodeLease(f"n{n}", "boot-1", DECLARED, 200_000, 0) for n in range(2))
    told(made, 1.0, first)
    assert list(made.plan.caps_mw) == ["n0"] and waits_s(made, 1.0) is None, "the first node does not wait"
    told(made, 1.5, first, second)
    assert (list(made.plan.caps_mw), waits_s(made, 1.5), made.due_s(1.5)) == (["n0"], 3.5, 3.5)
    told(made, 5.0, first, second)
    assert list(made.plan.caps_mw) == ["n0", "n1"] and waits_s(made, 5.0) is None

    running.append(Job("j0", ["n0"]))
    made.happened(5.1, "start")
    assert made.due_s(5.1) == 0
    made.turn(5.1)
    assert made.plan.caps_mw["n0"] == DECLARED.tdp_mw, "a start does not wait"
    running.clear()
    made.happened(5.2, "end")
    told(made, 9.0, first, second, tag="memory")
    assert made.plan.caps_mw["n0"] == DECLARED.tdp_mw and waits_s(made, 9.0) == pytest.approx(0.1)
    told(made, 9.11, first, second, tag="memory")
    assert made.plan.caps_mw["n0"] == DECLARED.mop_mw, "the end has waited for the gap, and so has the tag"

    made.ledger.budget.set(2 * DECLARED.mop_mw + 1000)
    made.turn(9.2)
    assert made.plan.available_mw == 2 * DECLARED.mop_mw + 1000, "a budget does not wait"
    before = made.plan
    told(made, 9.3, first, is_leaving=True, tag="memory")
    assert made.plan is not before, "a node that leaves does not wait: its agent would give up"


def test_a_tag_and_its_source_are_shown_alike_for_a_node_and_in_why(tmp_path):
    running = [Job("7", ["n0"], Tag.MEMORY, "user"), Job("8", ["n1"])]
    made, _ = partition(tmp_path, [], Sharing("aapc", lambda: running), gap_s=0.1)
    leases = [NodeLease(f"n{n}", "boot-1", DECLARED, 200_000, 0) for n in range(3)]
    told(made, 1.0, *leases, tag="mixed")
    assert [(row.tag, row.tag_source) for row in made.nodes(1.0)] == [
        ("MEMORY", "user"), ("MIXED", "node agent"), ("MIXED", "node agent"),
    ]  # fmt: skip
    report = msgspec.structs.replace(leases[0].report(2 * S, 1), tag="mixed", tag_source="measured")
    made.hear(2.0, [report])
    assert "tag: MEMORY (user); its agent says MIXED, measured" in made.why(2.0, "n0").lines
    assert "tag: MIXED (node agent); its agent says MIXED" in made.why(2.0, "n1").lines
    assert nodes_command.cells(made.nodes(2.0)[0])[7] == "MEMORY (user)"


def test_what_nodes_draw_is_planned_for_though_nothing_happens(tmp_path):
    made, _ = partition(tmp_path, [], gap_s=0.1)
    lease = NodeLease("n0", "boot-1", DECLARED, 200_000, 0)
    told(made, 1.0, lease)
    before = made.plan
    made.turn(1.0 + NEED_S - 0.1)
    assert made.plan is before
    made.turn(1.0 + NEED_S)
    assert made.plan is not before


def test_the_budget_and_who_changed_it_are_kept(tmp_path):
    store = BudgetStore(Database(tmp_path / "a.db"))
    assert store.load() is None
    store.change(Change(1.0, "root", "set 5 W"), 5_000, [(10.0, 4_000)])
    store.change(Change(2.0, "alice", "set 6 W"), 6_000, [])
    again = BudgetStore(Database(tmp_path / "a.db"))
    assert again.load() == (6_000, [])
    assert [one.who for one in again.changes()] == ["alice", "root"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is missing"),
        ("[budget]\nw = 100\nfixed_w = 100\n[nodes]\ntdp_w = 1", "not above fixed_w"),
        ("[budget]\nw = -1", "negative"),
        ("[budget]\nw = 1000", "nodes.tdp_w: is missing"),
        ("[budget]\nw = nan", "not a number"),
        ("[budget]\nw = 1\n[nodes]\ntdp_w = 1\ngap_s = 0", "nodes.gap_s: 0 s is outside 0.1..3600"),
        ("listen = 'tcp://0.0.0.0'", "cluster.toml:1: listen: 'tcp://0.0.0.0' is not tcp://ADDRESS:PORT, e.g. tcp://"),
        ("budgt = 3", "unknown key 'budgt' (nearest: "),
        ("[budget]\nwatt = 3", "cluster.toml:2: unknown key 'budget.watt'"),
        ("insecure = true\nmode = 'obsreve'", "cluster.toml:2: no mode is called 'obsreve' (nearest: observe)"),
        (
            "[budget]\nw = 1000\n[nodes]\ntdp_w = 1\n[jobs]\npolicy = 'powercap:mode=mix'",
            "jobs.policy: policy powercap:mode=mix and sharer fspc would both own the partition's watts",
        ),
        ("policy = 'easy'", "cluster.toml:1: unknown key 'policy': it belongs into [jobs]"),
        ("[jobs]\nstart_withn_s = 3", "cluster.toml:2: unknown key 'jobs.start_withn_s' (nearest: start_within_s)"),
        (
            "[budget]\nw = 1000\n[nodes]\ntdp_w = 1\n[jobs]\npolicy = 'easy:estimate=clairvoyant'",
            "estimate=clairvoyant needs",
        ),
        ("[budget]\nw = 1000\n[nodes]\ntdp_w = 1\n[jobs]\npolicy = 'prb'", "jobs.policy: "),
        ("[budget]\nw = 1000\n[nodes]\ntdp_w = 1\n[jobs]\nlost_after_s = 5", "less than down_after_s"),
        ("[budget\n", "cluster.toml:1: not TOML: "),
        ("[budget]\nkw = 4", "cluster.toml:2: unknown key 'budget.kw': it is given in w (nearest: w)"),
        (
            "[jobs]\n[jobs.power]\nretries = 'two'",
            "cluster.toml:3: jobs.power.retries: expected a whole number, got text",
        ),
    ],
)
def test_a_wrong_setting_is_one_line_with_file_and_key(tmp_path, capsys, text, message):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    assert main(["serve", "--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_settings_without_keys_say_how_to_make_them(tmp_path, capsys):
    path = tmp_path / "cluster.toml"
    path.write_text(f"keys = '{tmp_path}'\n[budget]\nw = 1000\n[nodes]\ntdp_w = 500\n")
    assert read_settings(path).terms == Terms(0, 1, 10.0)
    assert main(["serve", "--config", str(path)]) == 2
    assert "make one with `clusterctl keys new`" in capsys.readouterr().err


@pytest.mark.parametrize("watts", ["4kW", "-5", "nan", "0", "1e13", "-.5W"])
def test_what_is_no_budget_is_refused_with_the_unit_and_an_example(capsys, watts):
    assert main(["budget", "set", watts]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"clusterctl budget: {watts!r} is not a budget: give watts, a number above 0 without a unit, e.g. 4000\n"
    )


def test_a_missing_public_key_of_the_agent_says_where_it_is_to_be_copied_from(tmp_path):
    with pytest.raises(KeyFileError, match=r"copy the line `public = ...` of cluster\.key on the head node into it"):
        read_public(str(tmp_path / "cluster.pub"))


def test_a_schedule_is_read_in_local_and_absolute_times_and_a_wrong_line_is_named(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text("time,watts\n# night\n1000,5000\n2030-01-31T08:00:00+00:00,4000.5\n")
    assert read_schedule(path) == [(1000.0, 5_000_000), (1896076800.0, 4_000_500)]
    for text in ("1000\n", "1000,abc\n", "1000,-3\n", "1000,nan\n", "2000,5\n1000,5\n", "", "later,5\n"):
        path.write_text(text)
        with pytest.raises(WrongUseError, match=r"s\.csv"):
            read_schedule(path)
    with pytest.raises(WrongUseError, match="the schedule is past"):
        refuse_past(path, [(1000.0, 5)], 2000.0)


def test_an_alarm_says_what_the_nodes_that_cannot_be_reached_count(tmp_path):
    made, _ = partition(tmp_path, [])
    for name in ("n0", "n1"):
        made.expect(0.0, {name: DECLARED})
    made.replan(1.0)
    counts_w = made.budget_view(1.0).counts_w
    assert counts_w > 900  # else there is nothing to alarm of
    assert made.budget_view(1.0).alarms == [], "they may yet be heard"
    made.replan(1.0 + made.ledger.settle_s)
    assert any(
        f"2 nodes that cannot be reached count {counts_w:.1f} W: start their agents" in alarm
        for alarm in made.budget_view(1.0).alarms
    )


def test_without_a_cluster_agent_a_command_says_so(tmp_path, capsys):
    assert main(["nodes", "--socket", str(tmp_path / "none")]) == 1
    assert "is `clusterctl serve` running?" in capsys.readouterr().err
    with pytest.raises(ClusterError):
        ask(tmp_path / "none", ListNodes())


def test_an_announced_drop_is_planned_for_in_the_instant_from_which_it_counts(tmp_path):
    made, _ = partition(tmp_path, [])
    lease = NodeLease("n0", "boot-1", DECLARED, 500_000, 0)
    for grant in made.hear(1.0, [lease.report(1 * S, 400_000)]):
        lease.take(1 * S, grant)
    lease.confirm("seen")
    made.hear(1.2, [lease.report(round(1.2 * S), 400_000)])
    made.ledger.budget.announce(30.0, 300_000)
    made.hear(20.0 - 2.0, [lease.report(18 * S, 400_000)])
    counts_from_s = 30.0 - made.ledger.settle_s
    assert made.due_s(counts_from_s - 1.0) == pytest.approx(1.0)
    (grant,) = made.hear(counts_from_s + 0.001, [lease.report(round(counts_from_s * S), 400_000)])
    assert grant.cap_mw == 300_000
