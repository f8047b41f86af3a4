"""The parts of the page's process that need no socket: power over time, energy by user, alarms, and who may see."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.budget.kept_counts import Change
from cluster_agent.history.job_history import Pseudonyms
from cluster_agent.page import access
from cluster_agent.page.access import Sight, Viewers
from cluster_agent.page.alarm_fixes import FIXES, UNKNOWN, fix_of
from cluster_agent.page.feed import Feed
from cluster_agent.page.http_messages import RefusedRequestError, path_of, request_of
from cluster_agent.page.power_ring import COARSE, FINE, PowerRing, point_of
from cluster_agent.page.snapshot import OTHERS, Alarm, PowerPoint, Snapshot, Viewer
from cluster_agent.page.user_energy import by_user, median_per_node_h_j
from cluster_agent.serve.alarms import KINDS
from tests.page.synthetic_head import SyntheticHead, budget, ended


def point(at_s: float, draws_w: float | None = 100.0) -> PowerPoint:
    return PowerPoint(at_s, draws_w, 500.0, 400.0, "", 0)


def test_power_is_kept_for_a_day_and_the_highest_of_each_minute_is_never_lost() -> None:
    ring = PowerRing()
    for number in range(3 * 8640):
        ring.add(point(10.0 * number, 900.0 if number % 1000 == 3 else 100.0 + number % 6))
    points = ring.points()
    assert len(points) == FINE + COARSE and points[-1].at_s == 10.0 * (3 * 8640 - 1)
    assert points[0].at_s == pytest.approx(points[-1].at_s - 86_400, abs=120.0)
    assert [one.at_s for one in points] == sorted(one.at_s for one in points)
    peaks = [one.at_s for one in points if one.draws_w == 900.0]
    assert len(peaks) > 7 and peaks == [at_s for at_s in range(30, 259_200, 10_000) if at_s >= points[0].at_s]


def test_a_clock_that_is_set_back_leaves_no_points_of_the_future() -> None:
    ring = PowerRing()
    for at_s in range(0, 20_000, 10):
        ring.add(point(float(at_s)))
    assert not ring.is_due(19_995.0) and ring.is_due(20_001.0)
    assert ring.is_due(500.0), "an hour or more back"
    ring.add(point(500.0))
    assert [one.at_s for one in ring.points()][-2:] == [480.0, 500.0]


def test_watts_that_nobody_reports_are_not_nought(rows: SyntheticHead) -> None:
    nodes, view = rows.nodes, rows.budget
    whole = point_of(5.0, view, nodes)
    assert whole.draws_w == pytest.approx(sum(row.draws_w or 0.0 for row in nodes) + view.fixed_w)
    assert (whole.budget_w, whole.counted_w) == (view.budget_w, view.counts_w + view.fixed_w)
    assert whole.bound_by == "aapc: proportional to the load" and whole.bound == 7
    silent = [replace(row, state="silent") for row in nodes]
    assert point_of(5.0, view, silent).draws_w is None, "a silent node's last report says nothing about now"
    assert point_of(5.0, view, [*silent[1:], nodes[0]]).draws_w == (nodes[0].draws_w or 0.0) + view.fixed_w
    assert point_of(5.0, view, []).draws_w == view.fixed_w


def test_energy_of_a_user_names_the_jobs_of_which_nothing_is_known() -> None:
    rows = [ended(number, 1e9) for number in range(1, 41)]
    found = by_user(rows)
    assert sum(one.jobs for one in found) == 40 and sum(one.unknown for one in found) == 4
    assert [one.energy_j for one in found] == sorted((one.energy_j for one in found), reverse=True)
    assert {one.per_node_h_j for one in found} == {3600.0 * 250.0} == {median_per_node_h_j(rows)}
    assert found[0].kwh == pytest.approx(found[0].energy_j / 3.6e6)
    assert by_user([]) == () and median_per_node_h_j([replace(row, energy_j=None) for row in rows]) is None
    assert median_per_node_h_j(rows[:2]) is None, "a median of two says little, and of one it is that job itself"


def test_every_alarm_has_a_fix_of_its_own() -> None:
    assert set(FIXES) == set(KINDS) and UNKNOWN not in FIXES.values()
    assert fix_of("of a later version") == UNKNOWN and len(set(FIXES.values())) == len(KINDS)


# --- who may see


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> SyntheticHead:
    """Never started: its rows alone."""
    return SyntheticHead(tmp_path_factory.mktemp("rows") / "head.sock")


@pytest.fixture(scope="module")
def snapshot(rows: SyntheticHead) -> Snapshot:
    over = Alarm("raised", "2 nodes were set above the cap (n01: turbo by alice)", "end it", 5.0)
    changes = (
        Change(9.0, "alice", "schedule /home/alice/nights.csv: 3 steps to come"),
        Change(8.0, "alice", "forgot node n07, which counted 300 W: it has no power, says alice"),
        Change(7.0, "feed", "5000 W"),
    )
    nodes = tuple(replace(row, jobs="draining", jobs_why="alice wants it") for row in rows.nodes)
    return Snapshot(
        taken_s=10.0, budget=replace(rows.budget, alarms=[over.words]), changes=changes, nodes=nodes,
        jobs=tuple(rows.jobs), has_jobs=True, running=tuple(rows.running), ended=tuple(rows.ended), alarms=(over,),
        energy=by_user(rows.ended),
    )  # fmt: skip


def test_nobody_known_reads_no_name_of_a_user_anywhere(snapshot: Snapshot) -> None:
    seen = Sight().of(snapshot, Viewer(None, False))
    assert "alice" not in str(seen) and "bob" not in str(seen) and "simulation" not in str(seen)
    assert seen.changes[2] == snapshot.changes[2] and seen.changes[1].what.endswith(f"says {OTHERS}")


def test_programs_of_others_are_named_to_administrators_alone(snapshot: Snapshot) -> None:
    seen = Sight().of(snapshot, Viewer("bob", False))
    assert seen.alarms[0].words == "2 nodes were set above the cap"
    assert seen.budget is not None and seen.budget.alarms == ["2 nodes were set above the cap"]
    assert Sight().of(snapshot, Viewer("root", True)) is snapshot


@given(st.sets(st.sampled_from(["alice", "bob", "carol", "dave", "erin", "root", "", OTHERS, "nobody"]), min_size=1))
def test_whoever_looks_before_each_sees_its_own_rows_and_those_of_others_without_names(
    snapshot: Snapshot, names: set[str]
) -> None:
    """All viewers share what is hidden: none gets what another one may see."""
    sight = Sight()
    for name in sorted(names):
        seen = sight.of(snapshot, Viewer(name, False))
        for part in ("jobs", "running", "ended"):
            before, after = getattr(snapshot, part), getattr(seen, part)
            assert len(before) == len(after)
            for one, shown in zip(before, after, strict=True):
                assert shown == one if one.user == name else shown.user == OTHERS
        assert {one.user for one in seen.energy} <= {name, OTHERS}
        assert sum(one.energy_j for one in seen.energy) == pytest.approx(sum(one.energy_j for one in snapshot.energy))


def test_pseudonyms_stay_the_same_and_need_the_key(snapshot: Snapshot) -> None:
    def shown(key: bytes) -> str:
        seen = Sight(Pseudonyms(key)).of(snapshot, Viewer("root", True))
        assert "alice" not in str([seen.jobs, seen.running, seen.ended, seen.energy, seen.changes, seen.nodes])
        return str(seen.jobs)

    assert shown(b"a" * 32) == shown(b"a" * 32) != shown(b"b" * 32)


def test_administrators_are_users_and_groups_and_the_list_of_who_asked_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "MOST_KNOWN", 50)
    viewers = Viewers(("operator", "@root"))
    assert viewers.of_uid(0).sees_all and viewers.of_name("operator").sees_all and viewers.of_name("root").sees_all
    assert not Viewers(("@no-such-group",)).of_name("root").sees_all
    assert viewers.of_uid(1 << 30) == Viewer(str(1 << 30), False)
    for number in range(120):
        assert not viewers.of_name(f"stranger{number}").sees_all
    assert len(viewers._known) <= 50


def test_what_is_known_of_a_user_is_looked_up_again_after_a_minute() -> None:
    now_s = [0.0]
    viewers = Viewers(("operator",), lambda: now_s[0])
    assert viewers.of_name("operator").sees_all
    viewers._users = frozenset()
    assert viewers.of_name("operator").sees_all
    now_s[0] = 61.0
    assert not viewers.of_name("operator").sees_all


# --- requests


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_a_request_or_are_refused(head: bytes) -> None:
    for sent in (head, b"GET /" + head + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\n" + head + b"\r\n\r\n"):
        try:
            request = request_of(sent)
        except RefusedRequestError as error:
            assert 400 <= error.status < 600 and "\n" not in str(error)
        else:
            assert request.path.startswith("/") and request.method in ("GET", "HEAD")
            assert not {".", ".."} & set(request.path.split("/")) and "\0" not in request.path


@pytest.mark.parametrize("path", ["/..", "/a/../b", "/./a", "/%2e%2e/b", "/a/%2E", "/..%2fb", "a", "", "/%00", "/%4"])
def test_a_path_that_could_lead_elsewhere_is_refused_before_anything_sees_it(path: str) -> None:
    with pytest.raises(RefusedRequestError):
        path_of(path)
    assert path_of("/nodes/n%201/..n") == "/nodes/n 1/..n", "a name may have dots"


# --- polling


def test_rows_are_requested_while_somebody_looks_and_for_a_minute_after(tmp_path: Path) -> None:
    async def follow() -> None:
        now_s = [1000.0]
        with SyntheticHead(tmp_path / "head.sock") as head:
            feed = Feed(head.path, now_s=lambda: now_s[0])
            await feed._try("budget", feed._budget)
            await feed._try("nodes", feed._of_nodes)
            await feed._try("rows", feed._rows)
            assert len(feed.snapshot.power) == 1 and "job-changes" not in head.answered
            await feed.look(0.0)
            for seconds, jobs in ((1.0, 1), (58.0, 2), (2.0, 2)):
                now_s[0] += seconds
                await feed._try("rows", feed._rows)
                assert head.answered["job-changes"] == jobs

    asyncio.run(follow())


def test_jobs_that_end_at_one_moment_are_all_there_once(tmp_path: Path) -> None:
    async def follow() -> None:
        now_s = time.time()
        with SyntheticHead(tmp_path / "head.sock", ended_jobs=0) as head:
            feed = Feed(head.path)
            first = [replace(ended(number, now_s), ended_s=now_s - 50.0) for number in (1, 2)]
            old = replace(ended(9, now_s), ended_s=now_s - 8 * 86_400)
            head.ended = [old, *first]
            feed.snapshot = replace(feed.snapshot, **feed._ended())
            assert sorted(row.job for row in feed.snapshot.ended) == ["1", "2"], "no older than a week"
            head.ended = [old, *first, replace(ended(3, now_s), ended_s=now_s - 50.0)]
            feed.snapshot = replace(feed.snapshot, **feed._ended())
            assert sorted(row.job for row in feed.snapshot.ended) == ["1", "2", "3"]
            assert sum(one.jobs for one in feed.snapshot.energy) == 3
            assert feed._ended() == {}

    asyncio.run(follow())


def test_an_alarm_is_there_since_it_began(tmp_path: Path) -> None:
    now_s = [100.0]
    feed = Feed(tmp_path, wall_s=lambda: now_s[0])
    view = replace(budget(3), alarms=["too little"], alarm_kinds=["short"])
    assert feed._alarms(view) == (Alarm("short", "too little", fix_of("short"), 100.0),)
    now_s[0] = 200.0
    more = replace(view, alarms=["less still", "full"], alarm_kinds=["short", "store"])
    assert [one.since_s for one in feed._alarms(more)] == [100.0, 200.0]
    assert feed._alarms(budget(3)) == ()
    assert feed._alarms(view)[0].since_s == 200.0


def test_a_node_is_bound_since_a_look_saw_that_first_and_no_look_saw_otherwise(tmp_path: Path) -> None:
    now_s = [100.0]
    with SyntheticHead(tmp_path / "head.sock", nodes=3) as head:
        feed = Feed(head.path, wall_s=lambda: now_s[0])

        def look(at_s: float, *bound: int) -> list[float | None]:
            now_s[0] = at_s
            head.nodes = [
                replace(row, bound_by="aapc: need" if at in bound else "") for at, row in enumerate(head.nodes)
            ]
            feed.snapshot = replace(feed.snapshot, **feed._nodes())
            return [feed.snapshot.bound_since_s.get(row.name) for row in head.nodes]

        assert look(100.0, 0) == [100.0, None, None]
        assert look(200.0, 0, 2) == [100.0, None, 200.0]
        assert look(300.0, 2) == [None, None, 200.0]
        assert look(400.0, 0, 2) == [400.0, None, 200.0]
