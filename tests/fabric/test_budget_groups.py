"""Groups of nodes with limits of their own, and sets of rules by time of day, at a cluster agent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cluster_agent.budget.group_settings import GearSettings, GroupSettings
from cluster_agent.budget_rules.rule_sets import RuleSettings
from cluster_agent.cli import main
from cluster_agent.commands.top import summary
from cluster_agent.errors import WrongUseError
from cluster_agent.page.snapshot import Snapshot, Viewer
from cluster_agent.page.views import fragments
from cluster_agent.page.views.causes import cause
from cluster_agent.serve.config import BudgetSettings
from cluster_agent.serve.people_protocol import (
    ExplainCap,
    ListBudgetChanges,
    ListNodes,
    SetBudget,
    SetSchedule,
    ShowBudget,
    SwitchRules,
)
from foundation.mqtt.examon_topics import Source, messages
from tests.fabric.cluster import Cluster, boottime_s
from tests.fabric.test_forgetting import S, Site

GROUPS = [GroupSettings("room", 900.0, "n1"), GroupSettings("rack", 320.0, "n0", "room")]
NIGHT = RuleSettings("night", "20:00", "06:00", budget_w=700.0, sharer="aapc", groups={"rack": 250.0})
DAY = RuleSettings("day", "06:00", "20:00", budget_w=800.0)


def made(at: Path, *rules: RuleSettings, w: float = 1100.0) -> Site:
    """n0 in a rack of 320 W with a pump of 20 W, and n1, in a room of 900 W; nodes declare a MOP of 200 W, a TDP of
    500 W."""
    site = Site(at)
    gear = [GearSettings("pump", 10.0, 2, "rack")]
    site.settings = msgspec.structs.replace(
        site.settings, budget=BudgetSettings(w=w, group=GROUPS), gear=gear, rules=list(rules)
    )
    site.restart()
    return site


def settled(site: Site) -> dict[str, float]:
    """The caps in force once leases and plans have passed, within each limit at every step."""
    for _ in range(14):
        site.server._turn(site.now_s, [])
        site.hear("n0", "n1")
        partition = site.server.partition
        assert (partition.ledger.levels.breach_mw(site.now_s, partition.ledger.accounts) <= 0).all()
    return {row.name: row.in_force_w for row in site.request(ListNodes())}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    one = made(tmp_path)
    yield one
    one.server.close()


def test_caps_keep_the_limit_of_the_rack_and_why_names_the_level_that_binds(site: Site) -> None:
    assert settled(site) == {"n0": 300.0, "n1": 500.0}
    rack = site.request(ShowBudget()).groups[1]
    assert (rack.name, rack.parent, rack.limit_w, rack.fixed_w, rack.counts_w) == ("rack", "room", 320, 20, 300)
    assert (rack.free_w, rack.binds, rack.nodes, site.request(ShowBudget()).fixed_w) == (0, 1, 1, 20)
    why = site.request(ExplainCap("n0"))
    assert [one.name for one in why.levels] == ["room", "rack"] and why.bound_within == "rack"
    line = "in rack: its limit of 320 W has 0 W free and decides the cap; 300 W were shared among 1 nodes"
    assert line in why.lines and "in room: its limit of 900 W has 80 W free" in why.lines
    assert site.request(ExplainCap("n1")).bound_within == ""
    assert cause("aapc: tag in rack").endswith("(sharer: aapc, within the limit of rack)")


def drawing(site: Site, **power_w: float) -> None:
    """These nodes draw that by their next report."""
    site.now_s += 1.0
    reports = [site.leases[n].report(round(site.now_s * S), round(watts * 1000)) for n, watts in power_w.items()]
    site.server.partition.hear(site.now_s, reports)


def figures(site: Site, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], float]:
    """What Prometheus gets of groups: by the name and the group."""
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    from cluster_agent.commands import metrics

    monkeypatch.setattr(metrics, "ask", lambda socket, request: site.request(request))
    families = [one for one in metrics.PartitionCollector(Path()).collect() if one.name.startswith("clusterctl_group_")]
    assert not families or len(families) == len(metrics.GROUPS) + 1
    found = {(one.name[17:], one.labels["group"]): one.value for each in families for one in each.samples}
    topics = {one.topic.rpartition("/data/")[2] for one in messages(families, Source("o", "c", "p"), with_users=False)}
    of_broker = {f"group/{group}/clusterctl_group_{name}" for name, group in found if (name, group) != ("info", "rack")}
    assert topics == of_broker | ({"group/rack/parent/room/clusterctl_group_info"} if found else set())
    return found


def test_metrics_have_limit_caps_and_power_of_each_group_without_nodes_that_are_silent(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(site)
    drawing(site, n0=180.0, n1=410.0)
    found = figures(site, monkeypatch)
    rack = {name: value for (name, group), value in found.items() if group == "rack"}
    assert rack == {
        "limit_watts": 320.0, "fixed_watts": 20.0, "in_force_watts": 300.0, "counted_watts": 300.0, "free_watts": 0.0,
        "reserve_watts": 0.0, "over_watts": 0.0, "short_watts": 0.0, "power_watts": 180.0, "nodes": 1.0,
        "bound_nodes": 1.0, "info": 1.0,
    }  # fmt: skip
    room = {name: found[name, "room"] for name in ("limit_watts", "in_force_watts", "power_watts", "nodes")}
    assert room == {"limit_watts": 900.0, "in_force_watts": 800.0, "power_watts": 590.0, "nodes": 2.0}
    (view, _), lines = site.request(ShowBudget()).groups, summary(site.request(ShowBudget()), []).splitlines()
    assert lines[-2:] == [
        "rack in room of 320 W: drawn 200, counted 320, free 0", "room of 900 W: drawn 610, counted 820, free 80"
    ]  # fmt: skip
    many = msgspec.structs.replace(site.request(ShowBudget()), groups=[view] * 9)
    assert summary(many, []).splitlines()[-1] == "5 more groups have more free: clusterctl budget show"
    site.now_s += 600.0
    drawing(site, n1=400.0)
    found = figures(site, monkeypatch)
    assert ("power_watts", "rack") not in found and found["power_watts", "room"] == 400.0, "n0 is silent"
    assert summary(site.request(ShowBudget()), []).splitlines()[-2].startswith("rack in room of 320 W: counted ")


def test_without_groups_metrics_have_no_series_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    site.hear("n0", "n1")
    assert figures(site, monkeypatch) == {}
    site.server.close()


def test_a_limit_is_set_at_once_and_is_kept_through_a_restart_until_the_settings_change(site: Site) -> None:
    settled(site)
    (said,) = site.request(SetBudget(260, group="rack"))
    assert said.startswith("set rack to 260 W; in force in ") and said.endswith(" s at the latest")
    assert settled(site) == {"n0": 240.0, "n1": 500.0}
    site.restart()
    assert settled(site) == {"n0": 240.0, "n1": 500.0}
    assert site.request(ListBudgetChanges())[0].what == "set rack to 260 W by hand"
    groups = [GROUPS[0], GroupSettings("rack", 330.0, "n0", "room")]
    site.settings = msgspec.structs.replace(site.settings, budget=BudgetSettings(w=1100.0, group=groups))
    site.restart()
    assert settled(site)["n0"] == 310.0, "whoever changes the settings means it"


def test_an_announced_drop_of_a_rack_is_in_force_in_time(site: Site) -> None:
    settled(site)
    wall_s = 1e9 + site.now_s
    assert site.request(SetSchedule([(wall_s + 15.0, 260_000)], "week.csv", "rack")) == [
        "set rack by schedule week.csv: 1 steps to come"
    ]
    assert site.request(ShowBudget()).groups[1].steps == [(pytest.approx(15.0), 260.0)]
    while 1e9 + site.now_s < wall_s + 15.0:
        site.hear("n0", "n1")
    assert site.request(ShowBudget()).groups[1].counts_w == 240.0
    assert site.request(ShowBudget()).groups[1].limit_w == 260.0


@pytest.mark.parametrize(
    ("watts", "group", "why"),
    [
        (950.0, "rack", r"950 W are more than its parent room may draw \(900 W\)"),
        (150.0, "rack", r"150 W is 70 W less than the gear of rack and the minimal operating power .* \(220 W\)"),
        (150.0, "rck", r"no group of the budget is called 'rck' \(nearest: rack\)"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused_in_one_line(site: Site, watts: float, group: str, why: str) -> None:
    settled(site)
    with pytest.raises(WrongUseError, match=why):
        site.request(SetBudget(watts, group=group))
    assert site.request(ShowBudget()).groups[1].limit_w == 320.0


def test_a_room_may_be_lowered_below_its_rack_and_one_that_lacks_watts_is_an_alarm(site: Site) -> None:
    settled(site)
    site.request(SetBudget(430, group="room"))
    assert settled(site) == {"n0": 205.0, "n1": 205.0}, "the room binds: 410 W for nodes"
    site.request(SetSchedule([(1e9 + site.now_s + 1.0, 300_000)], "low.csv", "room"))
    for _ in range(3):
        site.hear("n0", "n1")
    (alarm,) = site.request(ShowBudget()).alarms
    assert alarm.startswith(
        "the limit of room, 300 W, is 120 W less than its gear and every node in it at its MOP need"
    )


def test_a_node_of_a_group_that_is_none_of_the_partition_is_an_alarm(tmp_path: Path) -> None:
    site = Site(tmp_path)
    groups = [GroupSettings("rack", 900.0, "n[0-2]")]
    site.settings = msgspec.structs.replace(site.settings, budget=BudgetSettings(w=1100.0, group=groups))
    site.restart()
    (alarm,) = site.request(ShowBudget()).alarms
    assert alarm.startswith("n2 of rack is no node of this partition: is the name right?")
    site.server.close()


SETTINGS = """listen = "tcp://127.0.0.1:7410"
insecure = true
{top}
[budget]
w = 1000.0
{groups}
[nodes]
tdp_w = 500.0
{more}
"""
ROOM = '[[budget.group]]\nname = "room"\nw = 900.0\nnodes = "n[0-3]"\n'


@pytest.mark.parametrize(
    ("groups", "more", "line"),
    [
        (ROOM + '[[budget.group]]\nname = "r1"\nw = 950.0\nparent = "room"', "",
         "group r1: 950 W are more than its parent room may draw (900 W): set at most that"),
        (ROOM.replace("900", "1200"), "", "group room: 1200 W are more than the whole budget (budget.w: 1000 W)"),
        (ROOM + '[[budget.group]]\nname = "r1"\nw = 90.0\nparent = "rom"', "",
         "group r1: its parent 'rom' is no group (nearest: room)"),
        ('[[budget.group]]\nname = "a"\nw = 9.0\nparent = "b"\n[[budget.group]]\nname = "b"\nw = 9.0\nparent = "a"', "",
         "group a: it is below itself, by its parent b"),
        (ROOM + '[[budget.group]]\nname = "r1"\nw = 90.0\nnodes = "n3"', "",
         "group r1: n3 in group room already: a node is in one group"),
        (ROOM + ROOM, "", "the group room is there twice"),
        (ROOM.replace("n[0-3]", "n[3-0]"), "", "group room: 'n[3-0]': 3-0 is an empty or too long range"),
        (ROOM, '[[gear]]\nname = "cdu"\nw = 500.0\ncount = 2\ngroup = "room"', "nothing would be left for the nodes"),
        (ROOM, '[[gear]]\nname = "cdu"\nw = 5.0\ngroup = "rom"', "gear cdu: no group is called 'rom' (nearest: room)"),
        (ROOM.replace("900.0", "90.0"), '[[gear]]\nname = "cdu"\nw = 95.0\ngroup = "room"',
         "group room: 90 W is not above what its gear draws (95 W)"),
        (ROOM.replace("w =", "watt ="), "", "nknown"),
        ("", '[[rules]]\nname = "x"\nbegin = "20:00"\nbudget_w = 700.0', "set x: give begin and end"),
        ("", '[[rules]]\nname = "x"\nbegin = "20:00"\nend = "25:00"\nbudget_w = 700.0',
         "set x: '25:00' is no time of day such as 06:30"),
        ("", '[[rules]]\nname = "x"\nsharer = "aapcc"', "aapcc"),
        ("", '[[rules]]\nname = "x"', "set x: it changes nothing: give budget_w, groups or sharer"),
        ("", '[[rules]]\nname = "x"\ngroups = {room = 5.0}', "set x: no group is called 'room'"),
    ],
)  # fmt: skip
def test_a_tree_or_a_set_of_rules_that_cannot_be_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], groups: str, more: str, line: str
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(SETTINGS.format(top="", groups=groups, more=more))
    assert main(["config", "check", "--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1 and f"{path}:" in error


RACK = '[[budget.group]]\nname = "rack"\nw = 90.0\nparent = "room"\n'


@pytest.mark.parametrize(
    ("groups", "more", "place"),
    [
        (ROOM + RACK.replace("90", "950"), "", "12: budget.group[1].w: group rack: 950 W are more"),
        (ROOM + RACK.replace('"room"', '"rom"'), "", "13: budget.group[1].parent: group rack: its parent"),
        (ROOM + RACK + 'nodes = "n3"', "", "14: budget.group[1].nodes: group rack: n3 in group room already"),
        (ROOM + RACK + RACK, "", "15: budget.group[2].name: the group rack is there twice"),
        (ROOM + RACK.replace("w =", "watt ="), "", "10: budget.group[1]: object contains unknown field watt"),
        (ROOM + RACK.replace("90.0", '"much"'), "", "12: budget.group[1].w: expected a number, got text"),
        (ROOM, '[[gear]]\nname = "a"\nw = 5.0\n[[gear]]\nname = "b"\nw = 5.0\ngroup = "rom"',
         "19: gear[1].group: gear b: no group is called 'rom'"),
        (ROOM + RACK, '[[rules]]\nname = "a"\nbudget_w = 700.0\n[[rules]]\nname = "b"',
         "20: rules[1]: set b: it changes nothing"),
    ],
)  # fmt: skip
def test_a_mistake_in_one_of_several_tables_names_the_line_of_that_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], groups: str, more: str, place: str
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(SETTINGS.format(top="", groups=groups, more=more))
    assert main(["config", "check", "--config", str(path)]) == 2
    assert f"{path}:{place}" in capsys.readouterr().err


def test_budget_show_has_the_groups_below_their_parents_and_the_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = made(tmp_path, NIGHT, RuleSettings("limits", groups={"rack": 310.0}))
    settled(site)
    view = site.request(ShowBudget())
    monkeypatch.setattr("cluster_agent.commands.budget.ask", lambda socket, request: view)
    assert main(["budget", "show"]) == 0
    out = capsys.readouterr().out
    assert any(line.startswith("  rack ") and "decides" in line for line in out.splitlines())
    page = fragments("/budget", Snapshot(budget=view), Viewer("root", True))["groups"]
    assert "Limits of groups of nodes" in page and "night" in page
    words = " ".join(out.split())
    assert "1 of 1 caps" in words and "budget at most 700 W, rack at most 250 W, sharer aapc" in words
    site.server.close()


# --- rules


def at(site: Site, clock: str) -> None:
    """Pass time until the local clock next shows this."""
    now = time.localtime(1e9 + site.now_s)
    hours, minutes = map(int, clock.split(":"))
    ahead_s = (hours * 3600 + minutes * 60 - now.tm_hour * 3600 - now.tm_min * 60 - now.tm_sec) % 86_400
    site.now_s += ahead_s + 0.01


def state(site: Site) -> tuple[float, str, float]:
    """After a turn: the budget, the sharer, the limit of the rack."""
    site.server._turn(site.now_s, [])
    view = site.request(ShowBudget())
    return view.budget_w, view.sharer, view.groups[1].limit_w


def test_rules_by_the_time_of_day_change_budget_sharer_and_limits_and_go_over_in_one_line(tmp_path: Path) -> None:
    site = made(tmp_path, NIGHT, DAY)
    at(site, "12:00")
    assert state(site) == (800.0, "fspc", 320.0)
    steps = site.request(ShowBudget()).steps
    assert steps[0] == (pytest.approx(8 * 3600, abs=1), 700.0), "the night is announced, so it is lowered for in time"
    site.said.clear()
    at(site, "20:00")
    assert state(site) == (700.0, "aapc", 250.0)
    assert [line for line in site.said if "rules" in line] == [
        line for line in site.said if line.startswith("the rules night are in force until ")
    ], "one line, and nothing in between"
    site.restart()
    assert state(site) == (700.0, "aapc", 250.0)
    at(site, "06:00")
    assert state(site) == (800.0, "fspc", 320.0)
    site.server.close()


def test_rules_are_switched_by_name_and_stay_switched_through_a_restart(tmp_path: Path) -> None:
    site = made(tmp_path, NIGHT, RuleSettings("crisis", budget_w=600.0, on=False))
    at(site, "21:00")
    assert state(site)[0] == 700.0
    said = site.request(SwitchRules("crisis", True))
    assert said[:2] == ["switched the rules crisis on", "the rules crisis are in force: budget at most 600 W"]
    assert state(site) == (600.0, "fspc", 320.0), "it goes before those with times"
    site.restart()
    assert state(site)[0] == 600.0
    site.request(SwitchRules("crisis", False))
    assert state(site)[0] == 700.0
    site.request(SwitchRules("night", False))
    assert state(site) == (1100.0, "fspc", 320.0)
    site.restart()
    assert state(site) == (1100.0, "fspc", 320.0)
    with pytest.raises(WrongUseError, match=r"no set of rules is called 'nigth' \(nearest: night\)"):
        site.request(SwitchRules("nigth", True))
    site.server.close()


def test_a_budget_set_lower_by_hand_counts_whatever_rules_are_in_force(tmp_path: Path) -> None:
    site = made(tmp_path, DAY)
    at(site, "12:00")
    settled(site)
    site.request(SetBudget(500))
    assert state(site)[0] == 500.0
    site.request(SetBudget(1000))
    assert state(site)[0] == 800.0, "rules only lower"
    site.server.close()


# --- live


TREE = """
[[budget.group]]
name = "rack"
w = 720.0
nodes = "n[0-1]"
[[gear]]
name = "switch"
w = 20.0
group = "rack"
[[rules]]
name = "crisis"
budget_w = 900.0
on = false
"""


def test_limits_and_rules_of_a_partition_of_processes_are_kept_at_every_instant_and_through_a_kill_of_the_head(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, 1400.0) as cluster:
        with cluster.config.open("a") as file:
            file.write(TREE)
        head = cluster.serve()
        for n in range(3):
            cluster.node(f"n{n}", cap_w=200.0)

        def are(*watts: float) -> bool:
            return [round(cluster.cap_w(f"n{n}")) for n in range(3)] == list(watts)

        def rack_w(since_s: float) -> float:
            cluster.names = ["n0", "n1"]
            found = cluster.highest_w(since_s, is_excused=True)
            cluster.names = ["n0", "n1", "n2"]
            return found

        cluster.until(lambda: are(350, 350, 500))
        assert rack_w(0.0) <= 700.0
        assert cluster.ctl("budget", "set", "520", "--group", "rack").returncode == 0
        cluster.until(lambda: are(250, 250, 500))
        lowered_s = boottime_s()
        assert cluster.ask("why", "n0")["bound_within"] == "rack"
        assert "decides 2 of 2 caps" in " ".join(cluster.ctl("budget", "show").stdout.split())
        head.kill()
        head.wait()
        cluster.serve()
        cluster.until(lambda: cluster.ask("budget", "show") and are(250, 250, 500))
        assert cluster.ctl("budget", "rules", "crisis", "--on").returncode == 0
        cluster.until(lambda: are(250, 250, 380))
        assert cluster.ctl("budget", "rules", "crisis", "--off").returncode == 0
        cluster.until(lambda: are(250, 250, 500))
        refused = cluster.ctl("budget", "set", "1500", "--group", "rak")
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1
        assert rack_w(lowered_s) <= 500.0
