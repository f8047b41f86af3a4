"""Who looks, and what that person may see.

A user sees the names of its own jobs; of jobs of others there are nodes, watts and times, and neither user, title nor
command. Administrators see all. Who looks is said by the kernel (a Unix socket), by the proxy in front (its own socket
and header, nowhere else), or by a token in the address (a page of one's own). Everybody else is nobody, who also sees
nobody's name in the ledger.

What a viewer may not see is taken out of the snapshot before a view gets it, so no view can forget a rule.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import time
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from cluster_agent.budget.kept_counts import Change
from cluster_agent.history.job_history import HistoryRow, Pseudonyms
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.page.snapshot import OTHERS, Alarm, Snapshot, Viewer
from cluster_agent.page.user_energy import merged
from cluster_agent.serve.people_protocol import JobRow, NodeRow, RunningJob
from cluster_agent.serve.why import Why

NOBODY: Final = Viewer(None, False)
LONGEST_NAME: Final = 96
KNOWN_FOR_S: Final = 60.0
"""Ours: so long a user's groups are not looked up again."""

MOST_KNOWN: Final = 10_000
NO_PERSONS: Final = ("feed", "settings")
"""Who changed the budget, and is no person."""

Row = TypeVar("Row", JobRow, RunningJob, HistoryRow)


class Viewers:
    """Gives a ``Viewer`` for a uid or a name. ``admins``: names of users, and ``@GROUP`` for all users of a group; root
    is one anyway."""

    def __init__(self, admins: Collection[str] = (), now_s: Callable[[], float] = time.monotonic) -> None:
        self._users = frozenset(name for name in admins if not name.startswith("@"))
        self._groups = frozenset(name[1:] for name in admins if name.startswith("@"))
        self._now_s = now_s
        self._known: dict[str | int, tuple[float, Viewer]] = {}

    def of_uid(self, uid: int) -> Viewer:
        """Of a peer on a Unix socket."""
        return self._kept(uid, lambda: self._of_uid(uid))

    def of_name(self, name: str) -> Viewer:
        """Of a user whom a proxy names; it need not be known on this machine."""
        return self._kept(name, lambda: Viewer(name, self._is_admin(name)))

    def _kept(self, key: str | int, look_up: Callable[[], Viewer]) -> Viewer:
        now_s = self._now_s()
        until_s, viewer = self._known.get(key, (float("-inf"), NOBODY))
        if now_s >= until_s:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            viewer = look_up()
            self._known[key] = now_s + KNOWN_FOR_S, viewer
        return viewer

    def _of_uid(self, uid: int) -> Viewer:
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = str(uid)
        return Viewer(name, uid == 0 or self._is_admin(name))

    def _is_admin(self, name: str) -> bool:
        if name in self._users or not self._groups:
            return name in self._users
        try:
            numbers = os.getgrouplist(name, pwd.getpwnam(name).pw_gid)
        except KeyError:
            return False
        return any(_group_name(number) in self._groups for number in numbers)


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return ""


MOST_SEEN: Final = 64
"""Ours: users for whom rows are kept as they see them, until the rows change: a megabyte for each six."""


class Sight:
    """What each viewer may see of a snapshot. ``pseudonyms`` stand for users everywhere, for administrators, too."""

    def __init__(self, pseudonyms: Pseudonyms | None = None) -> None:
        self._pseudonyms = pseudonyms
        self._words: dict[str, str] = {}
        self._named: tuple[Snapshot, Snapshot] | None = None
        self._hidden: dict[str, tuple[object, tuple[Any, ...], dict[str, list[int]]]] = {}
        self._seen_by: dict[str, dict[str, tuple[Any, ...]]] = {}  # rows as a user sees them, by kind and user

    def viewer(self, viewer: Viewer) -> Viewer:
        """As views know it: by its pseudonym, where there are some."""
        return viewer if viewer.user is None else Viewer(self._word(viewer.user), viewer.sees_all)

    def of(self, snapshot: Snapshot, viewer: Viewer) -> Snapshot:
        """What ``viewer`` may see, as ``Sight.viewer`` knows it."""
        shown = self._with_pseudonyms(snapshot)
        if viewer.sees_all:
            return shown
        user, alarms = viewer.user, tuple(map(_without_programs, shown.alarms))
        words = [alarm.words for alarm in alarms]
        is_own = user is not None and any(one.user == user for one in shown.energy)
        return replace(
            shown,
            budget=None if shown.budget is None else replace(shown.budget, alarms=words),
            changes=shown.changes if user is not None else tuple(map(_without_who, shown.changes)),
            nodes=shown.nodes if user is not None else self._without_reasons(shown.nodes),
            jobs=self._seen("jobs", shown.jobs, user, _without_names),
            running=self._seen("running", shown.running, user, _without_user),
            ended=self._seen("ended", shown.ended, user, _without_application),
            alarms=alarms,
            why={name: replace(one, alarms=words) for name, one in shown.why.items()},
            energy=merged(shown.energy, {user: user} if is_own and user is not None else {}, OTHERS),
            job=shown.job if shown.job is not None and shown.job[0].user == user else None,
        )

    def of_why(self, why: Why, shown: Snapshot, viewer: Viewer) -> Why:
        """Of a node; without the programs that alarms name, as in ``shown``, unless for administrators."""
        return why if viewer.sees_all else replace(why, alarms=[alarm.words for alarm in shown.alarms])

    def of_job(self, found: tuple[JobRow, Job] | None, viewer: Viewer) -> tuple[JobRow, Job] | None:
        """All about a job, for its owner and administrators; None for others."""
        if found is None:
            return None
        row, job = self._with_pseudonym(found[0]), found[1]
        if self._pseudonyms is not None:
            job = replace(job, user=row.user, uid=-1, spec=_without_paths(job.spec))
        return (row, job) if viewer.is_own(row.user) else None

    def _seen(self, name: str, rows: tuple[Row, ...], user: str | None, hide: Callable[[Row], Row]) -> tuple[Row, ...]:
        """The rows; those of others without what ``hide`` removes, which is done once for all viewers."""
        source, hidden, places = self._hidden.get(name, (None, (), {}))
        if source is not rows:
            places = {}
            for place, row in enumerate(rows):
                places.setdefault(row.user, []).append(place)
            hidden = tuple(map(hide, rows))
            self._hidden[name] = rows, hidden, places
            self._seen_by[name] = {}
        if not user or user not in places:
            return hidden
        seen_by = self._seen_by[name]
        if user not in seen_by:
            seen = list(hidden)
            for place in places[user]:
                seen[place] = rows[place]
            if len(seen_by) >= MOST_SEEN:
                seen_by.clear()
            seen_by[user] = tuple(seen)
        return seen_by[user]

    def _without_reasons(self, nodes: tuple[NodeRow, ...]) -> tuple[NodeRow, ...]:
        source, hidden, _ = self._hidden.get("nodes", (None, (), {}))
        if source is not nodes:
            hidden = tuple(replace(row, jobs_why="") if row.jobs_why else row for row in nodes)
            self._hidden["nodes"] = nodes, hidden, {}
        return hidden

    def _with_pseudonyms(self, snapshot: Snapshot) -> Snapshot:
        if self._pseudonyms is None:
            return snapshot
        if self._named is None or self._named[0] is not snapshot:
            names = {one.user: self._word(one.user) for one in snapshot.energy}
            named = replace(
                snapshot,
                changes=tuple(self._change(one) for one in snapshot.changes),
                nodes=self._without_reasons(snapshot.nodes),
                jobs=self._all("jobs", snapshot.jobs),
                running=self._all("running", snapshot.running),
                ended=self._all("ended", snapshot.ended),
                energy=merged(snapshot.energy, names, OTHERS),
                job=self.of_job(snapshot.job, Viewer(None, True)),
            )
            self._named = snapshot, named
        return self._named[1]

    def _all(self, name: str, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        """Rows with pseudonyms, made once as long as they do not change."""
        key = f"named {name}"
        source, named, _ = self._hidden.get(key, (None, (), {}))
        if source is not rows:
            named = tuple(map(self._with_pseudonym, rows))
            self._hidden[key] = rows, named, {}
        return named

    def _with_pseudonym(self, row: Row) -> Row:
        if self._pseudonyms is None:
            return row
        if isinstance(row, JobRow):
            return replace(row, user=self._word(row.user), uid=-1)
        return replace(row, user=self._word(row.user))

    def _change(self, one: Change) -> Change:
        return one if one.who in NO_PERSONS else _by(one, self._word(one.who))

    def _word(self, user: str) -> str:
        if self._pseudonyms is None:
            return user
        if len(self._words) >= MOST_KNOWN:
            self._words.clear()
        if user not in self._words:
            self._words[user] = self._pseudonyms("user", user)
        return self._words[user]


def _without_names(row: JobRow) -> JobRow:
    return replace(row, user=OTHERS, uid=-1, title="", reason="", status=None)


def _without_paths(spec: JobSpec) -> JobSpec:
    """A home has its user's name, and so may have what is run there."""
    return replace(spec, command=["(hidden)"], workdir="", script="", output="", error="", env={}, prolog="", epilog="")


def _without_user(row: RunningJob) -> RunningJob:
    return replace(row, user=OTHERS)


def _without_application(row: HistoryRow) -> HistoryRow:
    return replace(row, user=OTHERS, application="")


def _without_who(one: Change) -> Change:
    return one if one.who in NO_PERSONS else _by(one, OTHERS)


def _by(one: Change, who: str) -> Change:
    """With another name. A file's directory may have it, too."""
    what = re.sub(r"\S*/\S*", "(a file)", one.what)
    return Change(one.unix_s, who, re.sub(rf"\b{re.escape(one.who)}\b", who, what) if one.who else what)


def _without_programs(one: Alarm) -> Alarm:
    """Without the programs that users run, which the alarm names in brackets."""
    return replace(one, words=one.words.partition(" (")[0]) if one.kind == "raised" else one


def is_name(text: str) -> bool:
    """Whether a header may say that this is a user: one word that can be printed, without brackets: ``(null)`` is what
    Apache says of nobody, and ``OTHERS`` is no user."""
    return (
        0 < len(text) <= LONGEST_NAME
        and text.isprintable()
        and not any(char.isspace() or char in "()" for char in text)
    )
