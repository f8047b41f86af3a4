"""What the page's views say and show, of partitions made up for it (``tests.page.partitions``)."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, unquote, urljoin, urlsplit

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.budget.kept_counts import Change
from cluster_agent.history.job_history import HistoryRow
from cluster_agent.page.snapshot import OTHERS, Alarm, PowerPoint, Snapshot, UserEnergy, Viewer, ends_s, order_of
from cluster_agent.page.start_prediction import Prediction
from cluster_agent.page.views import assets, fragments, pages
from cluster_agent.page.views.causes import WAITS, cause
from cluster_agent.page.views.quantities import ago, energy, long, watts
from cluster_agent.page.views.racks import racks
from cluster_agent.serve.people_protocol import RunningJob
from tests.page.partitions import (
    NOW_S,
    STORY_BUDGET_W,
    budget,
    job,
    job_record,
    large,
    node,
    running,
    story,
    why,
)

ROOT = Viewer("root", True)
ADA = Viewer("ada", False)
NOBODY = Viewer(None, False)
VIEWS = ("/", "/nodes", "/jobs", "/budget", "/energy", "/alarms")
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e\x1b[2J\x00\n"


class Parsed(HTMLParser):
    """Elements with their attributes, texts, and the inner HTML of sections by their id."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("p", "li", "h1", "h2", "td", "th", "dt", "dd", "caption", "div", "summary"):
            self.texts.append(" ")

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.texts)).replace("\u00a0", " ")


def page(path: str, snapshot: Snapshot, viewer: Viewer = ROOT, **query: str) -> str:
    found = pages(path, query, snapshot, viewer)
    assert found is not None
    assert found[0] == 200, found[1]
    return found[1]


def said(path: str, snapshot: Snapshot, viewer: Viewer = ROOT, **query: str) -> str:
    return Parsed(page(path, snapshot, viewer, **query)).text


def links(address: str, snapshot: Snapshot, viewer: Viewer) -> tuple[int, list[str]]:
    """The status of a page below /base, and the addresses to which it leads."""
    split = urlsplit(address.removeprefix("/base"))
    found = pages(unquote(split.path), dict(parse_qsl(split.query)), snapshot, viewer)
    assert found is not None, address
    hrefs = [given["href"] for tag, given in Parsed(found[1]).elements if tag == "a"]
    return found[0], [urljoin(address, href) for href in hrefs if not href.startswith("#")]


@pytest.mark.parametrize("viewer", [replace(ROOT, user="ada"), NOBODY], ids=["administrator", "nobody"])
def test_every_link_of_every_page_leads_to_a_page_below_any_prefix(viewer: Viewer) -> None:
    waiting, seen = ["/base/"], set()
    while waiting:
        address = waiting.pop()
        if address in seen:
            continue
        seen.add(address)
        status, found = links(address, story(), viewer)
        assert status == 200 or re.fullmatch(r"/base/jobs/4[456]\d\d", address), "jobs that ended have left the queue"
        assert all(one.startswith("/base/") for one in found), address
        waiting += found
    assert len(seen) > 70


# --- are we within the budget, and who bound us


def test_the_first_view_answers_whether_we_are_within_the_budget_and_who_bound_us() -> None:
    text = said("/", story())
    assert "Within the budget: 15.9 kW of 21 kW (76 %); caps bind 12 of 64 nodes." in text
    assert re.search(
        r"What decided the cap of \d+ of them: slowed with all nodes of its job: the budget has no more watts", text
    )
    assert "even: slowed slowed with all nodes of its job: the budget has no more watts" in text
    assert "The feed lowered the budget from 24 kW to 21 kW at 13:33:20 (40 min ago)." in text.replace(
        time.strftime("%H:%M:%S", time.localtime(NOW_S - 2400)), "13:33:20"
    )
    assert text.index("What to do") < text.index("Power against the budget"), "alarms come first"
    quiet = replace(story(), nodes=tuple(node(f"n{at}", at) for at in range(8)))
    assert "; bound by nothing." in said("/", quiet)
    assert "No cap bounds a node" in said("/", quiet)


def test_above_the_budget_in_doubt_and_observing_are_said_as_such() -> None:
    base = story()
    over_w = 1500 + sum(row.draws_w or 0.0 for row in base.nodes) - 10_000
    assert f"Over the budget by {over_w:,.0f} W: 15.9 kW of 10 kW" in said(
        "/", replace(base, budget=budget(budget_w=10_000.0))
    )
    doubt = said("/", replace(base, budget=budget(over_w=700.0, lowering_s=8.0)))
    assert "Within the budget now:" in doubt
    assert "Nodes could draw 700 W more than the budget. It is being lowered, within 8 s at the latest." in doubt
    assert "only observes: no node is capped" in said("/", replace(base, budget=budget(mode="observe")))
    unknown = replace(base, nodes=tuple(node(f"n{at}", draws_w=None) for at in range(3)))
    assert "Power not known: not known of 21 kW" in said("/", unknown)
    assert "3 nodes without a reading of power are not in this sum" in said("/", unknown)
    gone = (node("n1", draws_w=200.0), node("n2", draws_w=300.0, state="silent"))
    text = said("/", replace(base, nodes=gone, budget=budget(fixed_w=100.0, free_w=-7.0, over_w=7.0)))
    assert "300 W of 21 kW" in text and "1 node without a reading of power is not in this sum" in text
    assert "Nodes could draw 7 W more than the budget. No alarm is on, so that is within what is tolerated" in text
    assert "-7" not in text, "less than nothing is not free"


def test_before_the_first_answer_and_after_the_last_one_the_page_says_so() -> None:
    for path in VIEWS:
        assert "The cluster agent has not answered yet." in said(path, Snapshot())
    lost = replace(story(), lost_since_s=time.time() - 240, lost_why="/run/x: Connection refused.")
    for path in (*VIEWS, "/nodes/r1n03", "/jobs/4711"):
        text = said(path, lost)
        assert re.search(r"does not answer since [\d:-]+( [\d:]+)?, for 4 min \(/run/x: Connection refused\)", text)
        assert "All below is the last that it said." in text
    assert "15.9 kW of 21 kW" in said("/", lost)
    never = Snapshot(lost_since_s=time.time(), lost_why="no socket")
    assert "Nothing is known yet" in said("/", never)


def test_power_over_time_has_gaps_where_nothing_is_known_and_counts_what_was_above() -> None:
    points = [PowerPoint(NOW_S - at, 900.0 + at / 10, 1000.0, 900.0, "", 0) for at in range(7000, -1, -10)]
    gapless = page("/", replace(story(), power=tuple(points)))
    assert path_of(gapless, "area").count("M") == 1
    assert "600 of 701 readings were above it." in Parsed(gapless).text
    holes = [one for one in points if not NOW_S - 4000 < one.at_s < NOW_S - 3000]
    holes[20] = replace(holes[20], draws_w=None)
    assert path_of(page("/", replace(story(), power=tuple(holes))), "area").count("M") == 3
    assert "No power is known yet" in said("/", replace(story(), power=()))
    young = replace(story(), power=tuple(PowerPoint(NOW_S - at, 900.0, 1e3, 900.0, "", 0) for at in range(60, -1, -10)))
    first = path_of(page("/", young), "area")
    assert first.startswith("M9000 ") and first.count("M") == 1, "ten minutes, of which the last one is known"
    day = said("/", story(), hours="24")
    assert "bound by: slowed with all nodes" in day and "Caps bound nodes for 40 min of it." in day


def path_of(html: str, kind: str) -> str:
    return next(given["d"] for tag, given in Parsed(html).elements if tag == "path" and given.get("class") == kind)


def test_the_budget_has_its_transitions_with_from_to_and_until() -> None:
    rows = re.findall(r"<tr><th scope=row>.*?</tr>", page("/budget", story()).partition("Transitions")[2])
    cells = [[Parsed(cell).text for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]
    assert [one[1:4] for one in cells] == [
        ["feed", "24 kW", "21 kW"],
        ["root", "20 kW", "24 kW"],
        ["root", "–", "–"],
        ["root", "–", "20 kW"],
    ]
    clocks = [time.strftime("%H:%M:%S", time.localtime(NOW_S - at)) for at in (2_400, 30_000)]
    assert [one[4] for one in cells] == ["now", clocks[0], "–", clocks[1]]
    million = replace(story(), changes=(Change(NOW_S, "root", "set 1.5e+06 W by hand"),))
    assert "root set the budget to 1.50 MW" in said("/budget", million)
    assert "nobody has changed it" in said("/budget", replace(story(), changes=()))
    someone = replace(story(), changes=(Change(NOW_S, OTHERS, "set 900 W by hand"),))
    assert "Somebody set the budget to 900 W" in said("/budget", someone, NOBODY)


# --- why is this node slow


def test_a_node_s_page_answers_why_it_is_slow() -> None:
    text = said("/nodes/r1n03", story())
    assert "Its cap slows it: it draws 260 W and may draw 262 W: slowed with all nodes of its job" in text
    assert "Its job is expected to take 8 % longer." in text
    at = time.strftime("%H:%M:%S", time.localtime(NOW_S - 2400))
    assert f"A cap has bound it since {at} (40 min ago) at least" in text
    assert all(Parsed(f"<p>{line}</p>").text in text for line in why("r1n03").lines), "as clusterctl why says it"
    assert "job 4711: turbulence of ada" in text
    assert "No cap slows it: it draws" in said("/nodes/r1n14", story())
    unbound = [replace(row, bound_by="", tag="MEMORY") if row.name == "r1n03" else row for row in story().nodes]
    text = said("/nodes/r1n03", replace(story(), nodes=tuple(unbound)))
    now_and_then = "Its cap binds it now and then, and not at this moment: it draws 260 W and may draw 262 W."
    assert f"{now_and_then} Its job is expected to take 8 % longer. What decided its cap: slowed with" in text
    assert "slowed with all nodes of its job" in text and "which no cap changes" not in text
    heard = tuple(replace(row, draws_w=154.0) if row.name == "r2n05" else row for row in story().nodes)
    silent = said("/nodes/r2n05", replace(story(), nodes=heard))
    assert "silent, down: it does not report" in silent and "Its last report is 5 min old." in silent
    assert "(by its last report)" in silent and "of a cap of" not in silent
    assert (
        "revoke its key (clusterctl keys revoke r2n05), then say so: clusterctl nodes forget r2n05 --is-off." in silent
    )
    assert "It gets no new jobs (draining): fan, says root." in said("/nodes/r3n09", story())
    assert f"It waits for 400 W: {WAITS['watts']}." in said("/nodes/r4n03", story())
    assert "job 88123 at tier2 of barbara" in said("/nodes/r4n15", story())
    found = pages("/nodes/nobody", {}, story(), ROOT)
    assert found is not None and found[0] == 404 and "There is no node" in Parsed(found[1]).text


def test_a_node_s_words_need_no_answer_of_its_own() -> None:
    text = said("/nodes/r1n02", story())
    assert "Its cap slows it" in text and "clusterctl why r1n02" in text


def test_what_bounds_and_what_is_waited_for_has_words_for_all_that_the_cluster_agent_says() -> None:
    from typing import get_args

    from cluster_agent.budget.sharers.view import Reason
    from cluster_agent.serve.why import WaitsFor

    for reason in Reason:
        assert cause(f"even: {reason.name.lower()}").endswith("(sharer: even)")
    assert cause("no lease: its safe cap") == "no lease: its safe cap"
    assert set(get_args(WaitsFor)) - {""} == set(WAITS)


@given(st.lists(st.from_regex(r"[a-z]{0,3}[0-9]{0,4}[a-z]?[0-9]{0,5}", fullmatch=True), max_size=600, unique=True))
def test_every_node_is_in_one_rack_that_its_own_key_finds(names: list[str]) -> None:
    found = racks(tuple(node(name) for name in names))
    assert sorted(row.name for one in found for row in one.rows) == sorted(names)
    assert len({one.key for one in found}) == len(found)
    assert all(one.key == one.first == one.rows[0].name for one in found)


def test_racks_are_by_name_and_stay_few() -> None:
    assert [len(one.rows) for one in racks(story().nodes)] == [16] * 4
    of_sequence = racks(tuple(node(f"n{at:05}") for at in range(10_000)))
    assert [(one.first, one.last) for one in of_sequence[:2]] == [("n00000", "n00099"), ("n00100", "n00199")]
    many = racks(tuple(node(f"r{rack}n{place}") for rack in range(2500) for place in range(4)))
    assert len(many) <= 150 and (many[0].first, many[0].last) == ("r0n0", "r16n3")
    assert [one.first for one in racks((node("r10n1"), node("r9n1")))] == ["r9n1", "r10n1"]
    assert [one.first for one in racks((node("n10"), node("n9"), node(""), node("login")))] == ["", "login", "n9"]


def test_nodes_without_names_and_a_partition_without_nodes_or_jobs_have_pages() -> None:
    nameless = replace(story(), nodes=(node(""), node(" "), node("n1")))
    for path in VIEWS:
        page(path, nameless)
    assert said("/nodes", nameless).count("(no name)") == 2, "of a rack each"
    empty = Snapshot(taken_s=NOW_S, budget=budget(nodes=0, silent=0))
    assert "No node has joined" in said("/nodes", empty)
    assert "The cluster agent runs no jobs itself." in said("/jobs", empty)
    assert "No job runs or waits." in said("/jobs", replace(empty, has_jobs=True))


# --- when will my job start, and why not now


def test_a_job_that_waits_says_when_it_starts_and_why_not_now() -> None:
    at = time.strftime("%H:%M:%S", time.localtime(NOW_S + 2_700))
    text = said("/jobs", story(), ADA)
    assert f"Your next job, 4712, waits: needs 16 nodes, and 0 are idle; it starts by {at} (in 45 min)." in text
    assert text.index("Your jobs") < text.index("Jobs that wait")
    alone = said("/jobs/4712", story(), ADA)
    assert f"When it starts: by {at} (in 45 min)." in alone and "Why not now: needs 16 nodes" in alone
    assert "Why not now: after job 4711 (running)." in said("/jobs/4714", story(), ADA)
    assert "When it starts: not planned: the policy in force plans no start" in said("/jobs/4714", story(), ADA)
    idle = replace(story(), nodes=tuple(replace(row, jobs="idle") for row in story().nodes))
    assert "nodes are idle, but the policy keeps them" in said("/jobs/4712", idle, ADA)


def test_the_plan_is_drawn_to_scale_running_and_planned_jobs_in_unlike_shapes() -> None:
    html = page("/jobs", story())
    boxes = {given["class"]: given for tag, given in Parsed(html).elements if tag == "rect" and "x" in given}
    planned = [given for tag, given in Parsed(html).elements if tag == "rect" and given.get("class") == "planned"]
    first_s, last_s = NOW_S - 12_000, NOW_S + 9_000 + 14_400
    assert [float(one["x"].rstrip("%")) for one in planned] == [
        pytest.approx(100 * (NOW_S + at - first_s) / (last_s - first_s), abs=0.01) for at in (2_700, 9_000)
    ]
    assert float(planned[0]["width"].rstrip("%")) == pytest.approx(100 * 14_400 / (last_s - first_s), abs=0.01)
    assert boxes["planned"] and any(kind.startswith("job ") for kind in boxes)
    unplanned = replace(story(), jobs=tuple(replace(one, planned_s=None) for one in story().jobs))
    assert "No start is planned or predicted" in said("/jobs", unplanned)


@given(st.lists(st.tuples(st.sampled_from(["running", "ending", "queued"]), st.integers(0, 3), st.integers(0, 3))))
def test_the_order_of_jobs_that_is_made_once_for_all_viewers_is_that_of_each(found: list[tuple[str, int, int]]) -> None:
    jobs = tuple(
        job(number, state=state, started_s=NOW_S + at, planned_s=NOW_S + planned if planned else None)
        for number, (state, at, planned) in enumerate(found)
    )
    likely_s = {number: NOW_S + at for number, (_, at, _) in enumerate(found) if at}
    order = order_of(jobs, Prediction(NOW_S, likely_s=likely_s))
    runs = sorted((one for one in jobs if one.state != "queued"), key=lambda one: (ends_s(one) or 0.0, one.job))
    waits = [one for one in jobs if one.state == "queued"]
    planned = sorted(waits, key=lambda one: (one.planned_s or math.inf, one.job))
    expected = sorted(waits, key=lambda one: (one.planned_s or likely_s.get(one.job, math.inf), one.job))
    assert [[jobs[at] for at in places] for places in (order.runs, order.waits, order.expected)] == [
        runs, planned, expected,
    ]  # fmt: skip
    shown = Snapshot(taken_s=NOW_S, jobs=jobs, has_jobs=True, predicted=Prediction(NOW_S, likely_s=likely_s))
    assert page("/jobs", shown) == page("/jobs", replace(shown, order=order))


def test_of_many_own_jobs_those_that_start_next_are_drawn_whatever_their_numbers() -> None:
    own, numbers = range(1, 41), range(1, 101)
    jobs = tuple(job(n, state="queued", user="ada" if n in own else "bob", planned_s=None) for n in numbers)
    made = Prediction(NOW_S, likely_s={n: NOW_S + 60.0 * (300 - n) for n in numbers})
    drawn = page("/jobs", Snapshot(taken_s=NOW_S, jobs=jobs, has_jobs=True, predicted=made), ADA)
    found = {int(n) for n in re.findall(r'aria-label="job (\d+) is to run', drawn)}
    assert found == {*range(29, 41), *range(89, 101)}, "half of the lines are hers, and half the next of all"


def test_a_start_that_nobody_plans_is_predicted_and_said_to_be_so_with_what_it_rests_on() -> None:
    unplanned = replace(story(), jobs=tuple(replace(one, planned_s=None) for one in story().jobs))
    at, late = (time.strftime("%H:%M:%S", time.localtime(NOW_S + after_s)) for after_s in (1_800, 5_400))
    made = Prediction(NOW_S - 10.0, "easy", known=3, likely_s={4712: NOW_S + 1_800}, if_whole_s={4712: NOW_S + 5_400})
    text = said("/jobs", replace(unplanned, predicted=made), ADA)
    assert f"it starts predicted: about {at} (in 30 min)." in text
    assert "A prediction, from a replay of the queue. Under the policy in force (easy). 3 jobs are taken to run" in text
    assert 'class="planned"' in page("/jobs", replace(unplanned, predicted=made), ADA)
    alone = said("/jobs/4712", replace(unplanned, predicted=made), ADA)
    assert f"When it starts: predicted: about {at}" in alone and f"its whole walltime: {late} (in 90 min)." in alone
    assert "Not in it: jobs that are still to come, watts, and which nodes" in alone and " old." not in alone
    old = replace(made, made_s=NOW_S - 300.0, instead="powercap: needs watts")
    alone = said("/jobs/4712", replace(unplanned, predicted=old), ADA)
    assert "It is 5 min old. As under easy, since the policy in force cannot be replayed" in alone
    lost = replace(unplanned, predicted=Prediction(NOW_S, trouble="no room"))
    assert "not planned, and not predicted: no room." in said("/jobs/4712", lost, ADA)


def test_a_job_that_runs_says_what_it_draws_why_its_clock_is_so_and_what_it_cost_against_its_like() -> None:
    snapshot = replace(story(), job=job_record(story().jobs[0]))
    text = said("/jobs/4711", snapshot, ADA)
    assert "It draws 3,114 W on 12 nodes, whose caps allow 3,144 W." in text
    assert "cap-bound on 12 of 12 nodes: slowed with all nodes of its job" in text
    assert "By its caps it takes 8.0 % longer, as its sharer predicts." in text
    assert "It took 4.14 kWh so far: 230 Wh per node hour." in text
    assert "That is as much as the median of 14 jobs of its name and user in the last week (230 Wh)." in text
    assert "./solve --steps 400" in text
    others = tuple(replace(row, user="alan", energy_j=1e9, job=f"9{row.job}") for row in story().ended)
    assert "median of 14 jobs of its name and user" in said(
        "/jobs/4711", replace(snapshot, ended=(*snapshot.ended, *others)), ADA
    )
    first, second, *rest = story().jobs
    other = said("/jobs/4701", replace(story(), jobs=(first, replace(second, title="new"), *rest)))
    assert "No cap slows it now" in other and "everybody's jobs in the last week" in other
    foreign = said("/jobs/88123", story(), ROOT, manager="tier2")
    assert "Job 88123 of tier2" in foreign and "It took 6.11 kWh so far." in foreign


def test_a_job_of_another_user_is_an_anonymous_row_without_a_page() -> None:
    hidden = replace(story(), jobs=tuple(
        one if one.user == "ada" else replace(one, user=OTHERS, title="", reason="") for one in story().jobs
    ))  # fmt: skip
    text = said("/jobs", hidden, ADA)
    assert "turbulence" in text and "mesh-4" in text and "weather" not in text and "grace" not in text
    found = pages("/jobs/4713", {}, hidden, ADA)
    assert found is not None and found[0] == 404
    assert 'href="./jobs/4713"' not in page("/jobs", hidden, ADA)


def test_long_tables_come_in_pages_that_have_every_row_once() -> None:
    snapshot = replace(story(), jobs=tuple(job(at) for at in range(1, 251)))
    seen: list[str] = []
    for number in ("1", "2", "3"):
        html = page("/jobs", snapshot, ROOT, part="waits", page=number)
        seen += re.findall(r'<th scope=row><a href="\./jobs/(\d+)">', html)
    assert sorted(map(int, seen)) == list(range(1, 251))
    for odd in ("0", "-1", "99999999999", "x", "²", ""):
        assert pages("/jobs", {"part": "waits", "page": odd}, snapshot, ROOT) is not None
    assert "page 3 of 3" in said("/jobs", snapshot, ROOT, part="waits", page="77")


# --- what did my jobs cost last week


def test_what_my_jobs_cost_last_week_comes_first_with_a_comparison() -> None:
    text = said("/energy", story(), ADA)
    assert "Your jobs took 13.9 kWh (15 jobs, of which 1 of unknown energy). A node hour took 230 Wh, 9 % above" in text
    users = re.findall(r"<th scope=row><bdi>(\w+)</bdi>", page("/energy", story(), ADA).partition("Users, by")[2])
    assert users == ["ada", "barbara", "edsger", "grace"], "one's own, then the most joules first"
    assert "No job of alan has ended in the last week." in said("/energy", story(), Viewer("alan", False))
    assert "Who you are is not known here" in said("/energy", story(), NOBODY)
    brief = replace(story(), energy=(UserEnergy("ada", 0.0, 0.0, 2, 2, 0.0, None),))
    text = said("/energy", brief, ADA)
    assert "What your jobs took is not known: 2 jobs ended." in text and " 0 Wh" not in text
    merged = replace(story(), energy=(UserEnergy(OTHERS, 3.6e6, 1.0, 2, 0, 1.0, 3.6e6),))
    assert "all others 1 kWh" in said("/energy", merged, ADA)


# --- what to do about an alarm


def test_an_alarm_says_what_to_do_about_it() -> None:
    html = page("/alarms", story())
    text = Parsed(html).text
    assert "1 alarm is on." in text and "1 node was set above the cap by a program" in text
    assert "What to do: End the program that is named" in text
    assert "<code>systemctl status tuned</code>" in html
    heard = tuple(row for row in story().nodes if row.state == "capped")
    assert "No alarm is on: nothing is to be done." in said("/alarms", replace(story(), alarms=(), nodes=heard))


def test_nodes_that_do_not_report_are_named_with_what_to_do_also_without_an_alarm() -> None:
    for path in ("/", "/alarms"):
        text = said(path, replace(story(), alarms=()))
        assert "1 node does not report: r2n05. A silent node counts the most that it may draw." in text
        assert "nothing is to be done" not in text and "nodes forget r2n05 --is-off" in text
    silent = replace(story(), alarms=(), nodes=tuple(replace(row, state="silent") for row in story().nodes))
    text = said("/alarms", silent)
    assert "64 nodes do not report: " in text and " and 54 more." in text


# --- names from elsewhere


def hostile(value: Any, evil: str) -> Any:
    """The same with ``evil`` in place of all texts but those of which the cluster agent has a list."""
    if isinstance(value, str):
        return evil
    if isinstance(value, (tuple, list)):
        return type(value)(hostile(one, evil) for one in value)
    if isinstance(value, dict):
        return {hostile(key, evil): hostile(one, evil) for key, one in value.items()}
    if isinstance(value, msgspec.Struct):
        listed = ("state", "lease_class", "mode", "jobs", "waits_for")
        names = [
            name for name in value.__struct_fields__ if not (name in listed and isinstance(getattr(value, name), str))
        ]
        return replace(value, **{name: hostile(getattr(value, name), evil) for name in names})
    if isinstance(value, Change):
        return Change(value.unix_s, evil, evil)
    return value


def shown(snapshot: Snapshot, evil: str) -> Iterator[str]:
    for path in VIEWS:
        yield page(path, snapshot, Viewer(evil, True))
    for part in ("runs", "waits", "others"):
        yield page("/jobs", snapshot, Viewer(evil, True), part=part)
    yield page("/nodes", snapshot, ROOT, rack=snapshot.nodes[0].name)
    for path in ("/nodes/" + evil, f"/jobs/{snapshot.jobs[0].job}", "/jobs/" + evil, "/jobs/-1"):
        found = pages(path, {"manager": evil, "rack": evil, "page": evil, evil: evil}, snapshot, ROOT)
        assert found is not None or not evil
        yield found[1] if found else ""


TAGS = {
    "html", "head", "meta", "title", "link", "script", "body", "a", "header", "p", "b", "bdi", "i", "nav", "ul", "li",
    "main", "div", "section", "footer", "span", "code", "h1", "h2", "table", "caption", "thead", "tbody", "tr", "th",
    "td", "dl", "dt", "dd", "svg", "path", "rect", "line", "text", "figure", "figcaption", "time", "details", "summary",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "name", "content", "rel", "href", "src", "defer", "data-updates", "class", "aria-label",
    "aria-current", "aria-hidden", "id", "tabindex", "scope", "data-title", "role", "d", "x", "y", "width", "height",
    "x1", "x2", "y1", "y2", "viewbox", "preserveaspectratio", "text-anchor", "datetime", "open",
}  # fmt: skip


@pytest.mark.parametrize("evil", [EVIL, "x" * 10_000, "", "\u202eabc", "`" * 7, "a/../../b?c#d&e=f;%00%2f", "\ud800"])
def test_no_name_brings_markup_along_however_it_is_made(evil: str) -> None:
    snapshot = replace(hostile(story(), evil), lost_since_s=1.0)
    snapshot = replace(snapshot, job=job_record(snapshot.jobs[0]))
    for html in shown(snapshot, evil):
        assert not set(html) & set("\u202e\x1b\x00")
        parsed = Parsed(html)
        assert {tag for tag, _ in parsed.elements} <= TAGS
        assert {name for _, attributes in parsed.elements for name in attributes} <= ATTRIBUTES
        assert [attributes for tag, attributes in parsed.elements if tag == "script"] == [
            {"src": attributes["src"], "defer": ""} for tag, attributes in parsed.elements if tag == "script"
        ]
        assert all("." in attributes["href"][:2] or attributes["href"] == "#main"
                   for _, attributes in parsed.elements if "href" in attributes)  # fmt: skip
        assert len(html) < 300_000
        html.encode()


def test_a_hostile_name_is_shown_as_it_is_written() -> None:
    rows = (job(1, title="<b>&amp;"), job(2, title="a" * 90), job(3, title="line\nbreak"))
    text = said("/jobs", replace(story(), jobs=rows))
    assert "<b>&amp;" in text and "a" * 60 + "…" in text and "line\\nbreak" in text


# --- clocks, weight, updates


def test_times_are_those_of_the_head_with_its_offset_and_the_browser_s_clock_plays_no_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        html = page("/", story())
    finally:
        monkeypatch.undo()
        time.tzset()
    assert "As of 19:43:20, UTC+05:30" in Parsed(html).text
    assert '<time datetime="2026-09-21T19:43:20+05:30">' in html
    assert "Date" not in assets()["/page.js"][1].decode()


def test_times_that_cannot_be_are_not_known_and_a_clock_that_was_set_back_is_no_error() -> None:
    odd = (job(1, submitted_s=NOW_S + 3_600, planned_s=1e18), running(2, ["r1n01"], 1e15), running(3, [], NOW_S + 60))
    text = said("/jobs", replace(story(), jobs=odd))
    assert "in 60 min" in text and "not known" in text


@pytest.mark.parametrize(
    ("shown", "as_text"),
    [(watts(999.0), "999 W"), (watts(12.34), "12.3 W"), (watts(412_345.0), "412.3 kW"), (watts(500_000.0), "500 kW"),
     (watts(1.25e6), "1.25 MW"), (watts(None), "not known"), (energy(3.6e6), "1 kWh"), (energy(900.0), "0.25 Wh"),
     (energy(8.3e5), "231 Wh"), (energy(9e9), "2,500 kWh"), (long(45), "45 s"), (long(5_400), "90 min"),
     (long(12_000), "3 h 20 min"), (long(260_000), "3 days"), (ago(10.0, 0.0), "in 10 s")],
)  # fmt: skip
def test_quantities_are_short_and_have_units(shown: str, as_text: str) -> None:
    assert shown == as_text


def test_pages_of_ten_thousand_nodes_and_five_thousand_jobs_stay_below_three_hundred_kilobytes() -> None:
    """With the style and the script, which a browser gets once more for each page."""
    snapshot = large()
    fixed = sum(len(body) for _, body in assets().values())
    heaviest = 0
    for path, query in [
        *((path, {}) for path in VIEWS), ("/", {"hours": "24"}), ("/nodes", {"rack": "node00100"}),
        ("/nodes/node00003", {}), ("/jobs", {"part": "waits"}), ("/jobs", {"part": "runs"}), ("/jobs/12", {}),
    ]:  # fmt: skip
        found = pages(path, query, snapshot, ROOT)
        assert found is not None and found[0] == 200
        heaviest = max(heaviest, len(found[1].encode()) + fixed)
    assert 50_000 < heaviest < 300_000
    assert "10,000 nodes: caps bind 3,334" in said("/nodes", snapshot)


def test_what_is_sent_as_updates_are_the_parts_of_the_page_by_the_ids_that_it_has() -> None:
    snapshot = story()
    for address in ("/", "/?hours=24", "/nodes?rack=r2n01", "/nodes/r1n03", "/jobs", "/jobs/4711",
                    "/jobs?part=waits&page=1", "/jobs/88123?manager=tier2"):  # fmt: skip
        path, _, query = address.partition("?")
        html = page(path, snapshot, ROOT, **dict(parse_qsl(query)))
        parts = fragments(address, snapshot, ROOT)
        assert "banner" in parts and len(parts) > 1
        for name, part in parts.items():
            assert f'<section id="{name}">{part}</section>' in html or f"<div id={name}>{part}</div>" in html
        named = re.search(r'data-updates="([^"]+)"', html)
        assert named is not None
        view = dict(parse_qsl(urlsplit(named[1]).query))["view"]
        assert fragments(view, snapshot, ROOT) == parts
    assert fragments("/nowhere", snapshot, ROOT) == {}


def test_a_changed_snapshot_changes_the_parts_that_it_is_about_alone() -> None:
    before = story()
    after = replace(before, alarms=(), taken_s=NOW_S)
    first, second = fragments("/", before, ROOT), fragments("/", after, ROOT)
    assert {name for name, part in first.items() if second[name] != part} == {"alarms"}


def test_what_is_no_view_has_no_page() -> None:
    for path in ("/x", "/nodes/", "/budget/1", "//", "/api", "/jobs/"):
        assert pages(path, {}, story(), ROOT) is None, path


def test_the_style_and_the_script_bring_nothing_from_elsewhere() -> None:
    found = assets()
    assert set(found) == {"/page.css", "/page.js"}
    for _, body in found.values():
        assert not re.search(rb"https?:|//[a-z]|@import|url\(|eval|Function\(", body)
    html = page("/", story())
    assert "style=" not in html and "<style" not in html and not re.search(r" on\w+=", html)


def test_a_history_without_energy_a_job_without_seconds_and_a_zero_budget_are_no_errors() -> None:
    row = HistoryRow("1", "ada", "x", 0, NOW_S, NOW_S, NOW_S, 0.0, energy_j=5.0)
    odd = replace(
        story(), ended=(row,), median_per_node_h_j=0.0, energy=(UserEnergy("ada", 0.0, 0.0, 1, 1, 0.0, None),),
        budget=budget(budget_w=0.0), nodes=(node("a", in_force_w=0.0, draws_w=0.0),),
        running=(RunningJob("", "", "", [], None, True),),
        alarms=(Alarm("", "", "", 0.0),), power=(PowerPoint(NOW_S, None, None, None, "", 0),),
    )  # fmt: skip
    for path in VIEWS:
        page(path, odd, ADA)
    assert STORY_BUDGET_W > 0
