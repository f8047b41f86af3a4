"""``--limit``, ``--partitions``, ``--memory``, ``--failures``, ``--reservations``, ``--windows``, ``--best-effort``:
what a site adds to its processors, for a log's jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Final, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
from msgspec.structs import replace

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.job_columns import Bools, Int32s, Int64s, Jobs
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.scheduler.switches import OPTIONS
from cluster_agent.scheduler.switches.failures import AFTER_S, DRAWN, Failure, Failures, are_drawn, drawn
from cluster_agent.scheduler.switches.limit_rules import MOST, is_number, rules_of
from cluster_agent.scheduler.switches.limits import UNCOUNTED, Limits, clash_of
from cluster_agent.scheduler.switches.queue_windows import longest_s, opened, windows_of
from cluster_agent.scheduler.switches.reservations import DAY_S, FOREVER_S, WEEK_S, Reserved, overlap
from cluster_agent.workloads import swf
from cluster_agent.workloads.job_log import LONGEST_S, Workload
from cluster_agent.workloads.swf import Finding, Log, TraceError
from cluster_agent.workloads.text_tables import rows_of

if TYPE_CHECKING:
    from cluster_agent.cluster import Machine
    from cluster_agent.library.given import World
    from cluster_agent.scheduler.world import World as Fitted
    from cluster_agent.workloads.node_trace import NodeTrace

KIB_PER_GIB: Final = 1 << 20
KEYS: Final = {"user": swf.USER, "group": swf.GROUP, "queue": swf.QUEUE}
COLUMNS: Final = {"partition": swf.PARTITION, "queue": swf.QUEUE}
HOUR_S: Final = 3600
LONGEST_H: Final = 1e7
MOST_FAILURES: Final = 1_000_000
"""Ours: beyond these it is a mistake."""
COLUMNS_OF_RESERVATIONS: Final = ("from_s", "to_s", "every_s", "made_s", "gone_s", "processors", "jobs")
SIZE: Final = re.compile(r"(?i)\b(\d{1,9})\s*(?:processors?|procs?|cpus?|cores?)\b")
"""Ours: the archive's headers describe partitions in words; a number of processors among them is the size."""


# --- what was given


def sizes_of(text: str, log: Log) -> tuple[str, dict[int, int]]:
    """Of ``log`` (the header's), ``1=6000,2=2192`` or ``queue:1=6000,2=2192`` the column of the log, and the processors
    of each of its values. ``WrongUseError``."""
    column, colon, sizes = text.rpartition(":")
    column = column if colon else "partition"
    if column not in COLUMNS:
        raise WrongUseError(f"--partitions {text}: {column!r} is neither partition nor queue")
    if sizes == "log":
        return column, _stated(text, column, log)
    found: dict[int, int] = {}
    for one in sizes.split(","):
        number, equals, size = one.partition("=")
        if not equals or not number.isdecimal() or len(number) > 9 or not is_number(size):
            raise WrongUseError(f"--partitions {text}: {one!r} is not NUMBER=PROCESSORS; or give `log`, for its header")
        if int(number) in found:
            raise WrongUseError(f"--partitions {text}: {int(number)} is there twice")
        found[int(number)] = int(size)
    return column, found


def _stated(text: str, column: str, log: Log) -> dict[int, int]:
    """By the header's lines such as ``; Partition: 1 batch, 6000 processors``."""
    found = {}
    for line in log.header.get(column.capitalize(), "").split("\n"):
        number, _, words = line.strip().partition(" ")
        if size := SIZE.search(words):
            found[int(number)] = int(size[1])
    if not found or min(found.values()) < 1:
        what = f"no line of its header says how many processors a {column} has"
        raise WrongUseError(f"--partitions {text}: {log.path}: {what}; give NUMBER=PROCESSORS,...")
    return found


def partitioned(given: World, log: Log) -> int | None:
    """The processors of all partitions that are given, for a log whose header states no machine."""
    return None if given.partitions is None else sum(sizes_of(given.partitions, log)[1].values())


# --- a log of processors


def with_switches(world: Fitted, given: World, choice: Choice) -> Fitted:
    """With the limits, partitions, memory, failures and reservations that are given; of failures, in a warm start,
    those from then on. Jobs that could never run are dropped and counted."""
    if given.failures is not None:
        found = _failures(given.failures, given, choice, world)
        if world.recorded is not None:
            found = replace(found, failures=[one for one in found.failures if one.at_s >= world.recorded.until_s])
        world = replace(world, failures=found)
    if given.best_effort is not None or given.best_effort_jobs is not None:
        world = _with_best_effort(world, given, choice)
    if not _names(given):
        return world
    closed = np.zeros(len(world.workload.jobs), np.bool_)
    workload, machine = world.workload, given.load_machine()
    has, part, workload = _partitions(given, workload)
    memory_kib = np.zeros(len(workload.jobs), np.int64)
    if given.memory is not None:
        has[:, 1] = has[:, 0] * _per_processor(given.memory, machine)
        memory_kib = _memory(workload)
    columns = workload.log.columns
    most, counts_jobs, counter = _counters(given, lambda key: _texts(columns[KEYS[key], workload.row]))
    limits = Limits(_names(given), has, part, memory_kib, most, counts_jobs, counter)
    _check(choice, limits.switches, "processors")
    if given.reservations is not None:
        limits = _with_reservations(limits, given.reservations, workload)
    if given.windows is not None:
        limits, closed = _with_windows(limits, given.windows, workload)
    never = np.zeros(len(workload.jobs), np.bool_)
    for what, fix, which in (*_never(limits, workload.jobs), (*_CLOSED, closed)):
        workload = _noted(workload, what, fix, "dropped", which & ~never, given.strict)
        never |= which
    return _kept(world, workload, limits, ~never)


def _with_best_effort(world: Fitted, given: World, choice: Choice) -> Fitted:
    """With the column ``best_effort`` of the jobs, or by the log's queues. ``WrongUseError``."""
    text, workload = given.best_effort, world.workload
    option = "column best_effort" if text is None else f"--best-effort {text}"
    for name in ("partitions", "memory", "closed_loop", "state"):
        if getattr(given, name) is not None:
            raise WrongUseError(f"{option}: does not go with --{name.replace('_', '-')}; leave one of them out")
    _check(choice, ("best_effort",), "processors")
    if text is None:
        column = given.best_effort_jobs
        assert column is not None
        found = column[workload.row]
    else:
        queues = _best_effort_queues(text)
        of_job = workload.log.columns[swf.QUEUE, workload.row]
        if absent := sorted(queues - set(of_job.tolist())):
            fix = "correct it, or leave that queue out"
            raise WrongUseError(f"{option}: {workload.path} has no job of queue {absent[0]}; {fix}")
        found = np.isin(of_job, list(queues))
    return world.with_jobs(replace(world.jobs, best_effort=found))


def _best_effort_queues(text: str) -> set[int]:
    """Of ``queue=2`` or ``queue=2,3``. ``WrongUseError``."""
    key, _, numbers = text.partition("=")
    if key != "queue" or not all(one.isdecimal() and len(one) < 10 for one in numbers.split(",")):
        raise WrongUseError(f"--best-effort {text}: give queues of the log, such as queue=2 or queue=2,3")
    return {int(one) for one in numbers.split(",")}


def _failures(text: str, given: World, choice: Choice, world: Fitted) -> Failures:
    """Of a file with the columns ``at_s,back_s,first,last``, or drawn. ``WrongUseError``."""
    if given.partitions is not None or given.memory is not None:
        raise WrongUseError(f"--failures {text}: does not go with --partitions and --memory; leave one of them out")
    _check(choice, ("failures",), "processors")
    processors = world.workload.processors
    if not are_drawn(text):
        return _read_failures(text, processors)
    found: dict[str, float] = {"processors": _of_a_node(world.workload.log, processors)}
    _check_keys(text, [one.partition("=")[0] for one in text.split(",")])
    for one in text.split(","):
        key, _, value = one.partition("=")
        try:
            found[key] = float(value)
        except ValueError:
            found[key] = -1.0
        is_whole = key in ("mtbf", "repair") or found[key].is_integer()
        if key not in DRAWN or not 0 < found[key] < LONGEST_H or not is_whole:
            raise WrongUseError(f"--failures {text}: {one!r} is none of mtbf=HOURS, repair=HOURS, processors=N")
    submit_s = world.jobs.submit_s
    width, back_s = min(int(found["processors"]), processors), max(round(found["repair"] * HOUR_S), 1)
    span = int(submit_s[0]), int(submit_s[-1]) + AFTER_S
    expected = -(-processors // width) * (span[1] - span[0]) / (found["mtbf"] * HOUR_S + back_s)
    if expected > MOST_FAILURES:
        raise WrongUseError(f"--failures {text}: some {expected:.0f} failures; give a longer mtbf")
    return Failures(drawn(processors, width, found["mtbf"] * HOUR_S, back_s, *span, given.seed))


def _check_keys(text: str, keys: list[str]) -> None:
    for key in ("mtbf", "repair"):
        if key not in keys:
            raise WrongUseError(f"--failures {text}: give {key}=HOURS, too")
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise WrongUseError(f"--failures {text}: {twice} is there twice")


def _of_a_node(log: Log, processors: int) -> int:
    """As the header says; else 1."""
    nodes = log.header.get("MaxNodes", "")
    return processors // int(nodes) if is_number(nodes) and processors % int(nodes) == 0 else 1


def _read_failures(path: str, processors: int) -> Failures:
    found: list[tuple[int, Failure]] = []
    rows, sha256 = rows_of(path)
    for line, row in rows:
        try:
            one = Failure(*(int(row[name]) for name in Failure._fields))
        except (KeyError, ValueError):
            raise TraceError(f"{path}:{line}: a line has whole numbers at_s,back_s,first,last; correct it") from None
        if not 0 <= one.at_s <= one.back_s <= LONGEST_S:
            raise TraceError(f"{path}:{line}: back_s must not be earlier than at_s, both from 0 on")
        if not 0 <= one.first <= one.last < processors:
            raise TraceError(f"{path}:{line}: first to last must be processors from 0 to {processors - 1}")
        found.append((line, one))
    found.sort(key=lambda one: one[1])
    away: list[Failure] = []
    for line, one in found:
        away = [before for before in away if before.back_s > one.at_s]
        for before in away:
            if before.first <= one.last and one.first <= before.last:
                raise TraceError(f"{path}:{line}: these processors are still away from {before.at_s} s on")
        away.append(one)
    return Failures([one for _, one in found], sha256)


def _with_reservations(limits: Limits, path: str, workload: Workload) -> Limits:
    """Of a file with the columns ``COLUMNS_OF_RESERVATIONS``. ``WrongUseError``."""
    if {"partitions", "memory"} & set(limits.switches):
        raise WrongUseError(f"--reservations {path}: does not go with --partitions and --memory; leave one of them out")
    found, jobs_of, sha256 = _read_reservations(path, workload.processors, int(workload.jobs.submit_s[-1]) + AFTER_S)
    place = {number: at for at, number in enumerate(workload.jobs.number.tolist())}
    pool = np.zeros(len(workload.jobs), np.int32)
    for at, jobs in enumerate(jobs_of, 1):
        pool[[place[number] for number in jobs if number in place]] = at
    return replace(limits, reserved=found, pool=pool, reserved_sha256=sha256)


def _read_reservations(path: str, processors: int, last_s: int) -> tuple[list[Reserved], list[list[int]], str]:
    """With the numbers of the jobs of each, and the file's SHA-256. Those that come again do so until ``last_s``."""
    rows, sha256 = rows_of(path)
    found, jobs_of = list[Reserved](), list[list[int]]()
    for line, row in rows:
        try:
            one, jobs = _reserved(row, last_s), [int(number) for number in row["jobs"].split()]
        except (KeyError, ValueError):
            columns = ",".join(COLUMNS_OF_RESERVATIONS)
            raise TraceError(
                f"{path}:{line}: a line has whole numbers {columns} (jobs: blanks between); correct it"
            ) from None
        if one.every_s not in (0, DAY_S, WEEK_S):
            raise TraceError(f"{path}:{line}: every_s must be 0, {DAY_S} or {WEEK_S}")
        if not 0 < one.length_s <= (one.every_s or LONGEST_S):
            raise TraceError(f"{path}:{line}: to_s must be later than from_s, and by no more than every_s")
        if max(abs(int(row[name] or 0)) for name in COLUMNS_OF_RESERVATIONS[:5]) > LONGEST_S:
            raise TraceError(f"{path}:{line}: no time may be beyond {LONGEST_S} s")
        if not 0 < one.width <= processors:
            raise TraceError(f"{path}:{line}: processors must be from 1 to {processors}")
        found.append(one)
        jobs_of.append(jobs)
    if not found:
        raise TraceError(f"{path}: has no reservation; leave it out")
    _check_together(path, found, processors)
    return found, jobs_of, sha256


def _reserved(row: Mapping[str, str], last_s: int) -> Reserved:
    """One that comes again does so until ``last_s``, so that every replay ends. ``ValueError``."""
    numbers = {name: int(row[name] or 0) for name in COLUMNS_OF_RESERVATIONS[:4]}
    gone_s = int(row["gone_s"]) if row["gone_s"] else last_s if numbers["every_s"] else FOREVER_S
    return Reserved(**numbers, gone_s=gone_s, width=int(row["processors"]))


def _check_together(path: str, found: Sequence[Reserved], processors: int) -> None:
    for at, one in enumerate(found):
        if (clash := overlap(one, found[:at], processors)) is not None:
            raise TraceError(f"{path}: reservation {at + 1} and those before it are more than {processors} processors"
                             f" together at {clash} s; correct it")  # fmt: skip


LATEST_S: Final = 4_102_444_800
LONGEST_LOG_S: Final = 30 * 366 * DAY_S
"""Ours: after it clocks are not followed when they change."""
_CLOSED: Final = ("jobs longer than any window of their queue", "delete it, or give its queue a longer one")


def _with_windows(limits: Limits, text: str, workload: Workload) -> tuple[Limits, Bools]:
    """By the log's queues, in its own time zone; and which jobs no window is long enough for. ``WrongUseError``."""
    from cluster_agent.workloads.warm_log import unix_start_s  # a short replay is as long as its imports

    if {"partitions", "memory"} & set(limits.switches):
        raise WrongUseError(f"--windows {text}: does not go with --partitions and --memory; leave one of them out")
    windows, log = windows_of(text, "--windows "), workload.log
    of_job, jobs = _texts(log.columns[KEYS["queue"], workload.row]), workload.jobs
    for queue in windows:
        if queue not in of_job:
            fix = "correct it, or leave its windows out"
            raise WrongUseError(f"--windows {text}: {workload.path} has no job of queue {queue}; {fix}")
    zero_s = unix_start_s(log)
    if zero_s is None:
        fix = "add a line `; UnixStartTime: SECONDS`"
        raise WrongUseError(f"--windows {text}: the header of {workload.path} does not say when it begins: {fix}")
    begins_s, ends_s = (zero_s + int(at_s) for at_s in (jobs.submit_s[0], jobs.submit_s[-1] + AFTER_S))
    if begins_s > LATEST_S:
        raise WrongUseError(f"--windows {text}: the jobs of {workload.path} are submitted after 2099")
    place = {queue: at for at, queue in enumerate(windows, 1)}
    column = np.array([place.get(queue, 0) for queue in of_job], np.int32)
    queues = opened(windows, begins_s, min(ends_s, begins_s + LONGEST_LOG_S), _zone_of(log), zero_s)
    most_s = np.array([LONGEST_S, *(longest_s(each) for each in windows.values())])[column]
    if limits.reserved:
        most_s = np.where(limits.pool > 0, LONGEST_S, most_s)
    return replace(limits, queues=queues, open=column), jobs.request_s > most_s


def _zone_of(log: Log) -> tzinfo:
    """Of its header; else UTC."""
    name, offset = (log.header.get(key, "").strip() for key in ("TimeZoneString", "TimeZone"))
    try:
        return ZoneInfo(name) if name else timezone(timedelta(seconds=int(offset))) if offset else UTC
    except (ValueError, OSError, OverflowError, KeyError):
        raise WrongUseError(f"{log.path}: its header has the time zone {name or offset!r}, which is unknown") from None


Source = TypeVar("Source", Workload, "NodeTrace")


def _kept(world: Fitted, source: Source, limits: Limits, keeps: Bools) -> Fitted:
    """The world with these limits and jobs. ``TraceError`` if none is left, or one that a state has started."""
    if not keeps.any():
        raise TraceError(f"{source.path}: no job is left: {'; '.join(map(str, source.findings))}")
    if keeps.all():
        return replace(world, source=source, limits=limits)
    if world.recorded is not None:
        lost = int((~keeps).sum())
        raise TraceError(f"{source.path}: {lost} jobs could never run, which a warm start cannot leave out: give more")
    watts, rows = world.watts, np.flatnonzero(keeps)
    if watts is not None and watts.job_busy_uw is not None:
        watts = replace(watts, job_busy_uw=watts.job_busy_uw[keeps])
    return replace(world, source=source.only(rows), limits=limits.only(rows), watts=watts)


def _names(given: World) -> tuple[str, ...]:
    found = {name: getattr(given, name) for name in ("partitions", "limits", "memory", "reservations", "windows")}
    return tuple(name for name, text in found.items() if text is not None)


def _check(choice: Choice, switches: tuple[str, ...], kind: str) -> None:
    if reason := clash_of(choice.on(kind), switches):
        raise WrongUseError(f"--policy {choice.text}: {reason}")


def _partitions(given: World, workload: Workload) -> tuple[Int64s, Int32s, Workload]:
    """What each has (processors, and no memory counted), each job's, and the workload with what was mended."""
    jobs = len(workload.jobs)
    if given.partitions is None:
        return np.array([[workload.processors, UNCOUNTED]]), np.zeros(jobs, np.int32), workload
    column, sizes = sizes_of(given.partitions, workload.log)
    if sum(sizes.values()) > workload.processors:
        all_sizes = f"{sum(sizes.values())} processors in all"
        raise WrongUseError(f"--partitions {given.partitions}: {all_sizes}, and the machine has {workload.processors}")
    numbers, value = list(sizes), workload.log.columns[COLUMNS[column], workload.row]
    part = np.full(jobs, -1, np.int32)
    for at, number in enumerate(numbers):
        part[value == number] = at
    lost = part < 0
    fix = f"give its size in --partitions, or write the number in column {COLUMNS[column] + 1}"
    what, largest = f"jobs of another {column} than those that have a size", max(numbers, key=sizes.__getitem__)
    workload = _noted(workload, what, fix, f"taken as of {column} {largest}", lost, given.strict)
    part[lost] = numbers.index(largest)
    return np.array([[size, UNCOUNTED] for size in sizes.values()]), part, workload


def _per_processor(text: str, machine: Machine | None) -> int:
    """KiB of each processor."""
    if text == "machine":
        if machine is None or not all(group.memory_gb for group in machine.groups):
            raise WrongUseError("--memory machine: give a --machine whose file has memory_gb, or GIB of a processor")
        gib = sum(group.count * group.memory_gb for group in machine.groups) / machine.processors
    else:
        try:
            gib = float(text)
        except ValueError:
            gib = 0.0
        if not 0 < gib < KIB_PER_GIB:
            raise WrongUseError(f"--memory {text}: give GiB of a processor, above 0, or `machine`")
    return max(round(gib * KIB_PER_GIB), 1)


def _memory(workload: Workload) -> Int64s:
    """KiB of each job: what it requested (column 10), else what it used (column 7), of each of its processors."""
    columns, row = workload.log.columns, workload.row
    wanted, used = columns[swf.MEMORY_WANTED, row], columns[swf.MEMORY_USED, row]
    kib = np.where(wanted > 0, wanted, np.maximum(used, 0)).clip(max=1 << 40)
    found: Int64s = kib * workload.jobs.width
    return found


def _texts(values: Int64s) -> list[str]:
    """The log's numbers as texts; "": unknown."""
    return ["" if value < 0 else str(value) for value in values.tolist()]


def _counters(given: World, values: Callable[[str], Sequence[str]]) -> tuple[Int64s, Bools, Int32s]:
    """``most``, ``counts_jobs`` and ``counter`` of ``Limits``, by what the jobs have of a key ("": unknown). A rule for
    one value stands in place of that for all; ``WrongUseError`` for a value that no job has."""
    most: list[int] = []
    counts_jobs: list[bool] = []
    keys = []
    rules = rules_of(given.limits or "")
    for key, what in dict.fromkeys((rule.key, rule.what) for rule in rules):
        of_all = {rule.value: rule.most for rule in rules if (rule.key, rule.what) == (key, what)}
        of_value: dict[str, int] = {"": -1}
        column = []
        for value in values(key):
            if value not in of_value:
                limit = of_all.get(value, of_all.get(None))
                of_value[value] = -1 if limit is None else len(most)
                most += [] if limit is None else [limit]
            column.append(of_value[value])
        _check_there(given, key, of_all, of_value)
        counts_jobs += [what == "jobs"] * (len(most) - len(counts_jobs))
        keys.append(column)
    counter = np.array(keys, np.int32).T if keys else np.zeros((len(values("user")), 0), np.int32)
    return np.array(most, np.int64), np.array(counts_jobs, np.bool_), counter


def _check_there(given: World, key: str, wanted: Iterable[str | None], there: Collection[str]) -> None:
    """``there``: "" and what jobs have of ``key``. ``WrongUseError`` for a limit that is of no job."""
    if len(there) == 1:
        raise WrongUseError(f"--limit {given.limits}: {given.path} does not say the {key} of its jobs")
    if absent := [value for value in wanted if value is not None and value not in there]:
        fix = "correct it, or leave that limit out"
        raise WrongUseError(f"--limit {given.limits}: {given.path} has no job of {key} {absent[0]}; {fix}")


_BEYOND: Final = ("jobs beyond the limit of their user or queue", "delete it, or give a higher --limit")


def _beyond(limits: Limits, width: Int32s) -> Bools:
    """Which jobs alone are more than their limits allow."""
    if not len(limits.most):
        return np.zeros(len(width), np.bool_)
    amount = np.where(limits.counts_jobs[limits.counter], 1, width[:, None])
    is_beyond: Bools = (limits.counter >= 0) & (amount > limits.most[limits.counter])
    found: Bools = np.logical_or.reduce(is_beyond, axis=1)
    return found


def _never(limits: Limits, jobs: Jobs) -> list[tuple[str, str, Bools]]:
    """What could not run even alone: (what, the fix, which jobs)."""
    has, width = limits.has[limits.partition], jobs.width
    most = np.array([(MOST, LONGEST_S), *((one.width, one.length_s) for one in limits.reserved)])
    most_width, most_s = most[limits.pool].T if limits.reserved else (width, jobs.request_s)
    exceeds = (width > most_width) | (jobs.request_s > most_s)
    return [
        ("jobs wider or longer than their reservation", "delete it, or give the reservation more", exceeds),
        ("jobs wider than their partition", "delete it, or give the partition more", width > has[:, 0]),
        ("jobs with more memory than their partition has", "delete it, or give more", limits.memory_kib > has[:, 1]),
        (*_BEYOND, _beyond(limits, width)),
    ]


def _noted(source: Source, what: str, fix: str, done: str, which: Bools, is_strict: bool) -> Source:
    """With the finding, if there is any. ``TraceError`` if ``is_strict``."""
    if not which.any():
        return source
    lines = source.line[which]
    if is_strict:
        where = f"{source.path}:{lines.min()}"
        raise TraceError(f"{where}: {what} (first of {len(lines)}): {fix}, or leave out --strict")
    finding = Finding(what, done, len(lines), int(lines.min()), fix)
    return replace(source, findings=(*source.findings, finding))


# --- nodes that differ


def on_nodes_with_switches(world: Fitted, given: World, choice: Choice) -> Fitted:
    """With the limits of users and queues; nodes have clusters and memory of their own."""
    for name in ("partitions", "memory", "failures", "reservations", "windows", "best_effort"):
        if (text := getattr(given, name)) is not None:
            raise WrongUseError(f"{OPTIONS[name]} {text}: only for a log of processors; leave it out")
    if given.best_effort_jobs is not None:
        raise WrongUseError("column best_effort: not with configurations; leave it out")
    if given.limits is None:
        return world
    trace = world.node_trace
    columns = {"user": trace.user, "queue": trace.jobs.queue or ("",) * len(trace.jobs)}

    most, counts_jobs, counter = _counters(given, lambda key: columns.get(key, ("",) * len(trace.jobs)))
    _check(choice, ("limits",), "nodes")
    none, nothing = np.zeros((0, 2), np.int64), np.zeros(len(trace.jobs), np.int64)
    limits = Limits(("limits",), none, nothing.astype(np.int32), nothing, most, counts_jobs, counter)
    never = _beyond(limits, trace.jobs.width)
    trace = _noted(trace, *_BEYOND, "dropped", never, given.strict)
    return _kept(world, trace, limits, ~never)
