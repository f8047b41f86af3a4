"""Worlds that stop at each decision (``cluster_agent.stepping.steps``): the policy's own schedules, forks, refusals."""

from __future__ import annotations

import copy
import ctypes
import gc
import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from cluster_agent.errors import StepError
from cluster_agent.replay.world_run import run
from cluster_agent.scheduler.job_columns import Int64s, Jobs
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition, Queue
from cluster_agent.scheduler.world import World
from cluster_agent.stepping.steps import Steps, Stops
from tests.cluster_agent.traces import widest_first
from tests.cluster_agent.worlds import workload_of

PROCESSORS = 32
POLICIES = (
    "fcfs",
    "easy",
    "easy:guard=5",
    "easy-sjbf",
    "easy-sjbf:estimate=mean2,correct=incremental",
    "easy-sjbf:estimate=mean2,history=similar,fixed=start,correct=incremental",
    "easy:estimate=mean2,correct=doubling-capped,shadow=2",
    "conservative",
    "conservative:ends=compress",
    "score:lowest=saf",
    "wfp3",
)


def policy(text: str) -> Composition:
    return choose(text).composition


def world(n: int = 300, seed: int = 1, load: float = 1.3) -> World:
    """Crowded: ``load`` times what the machine can do."""
    random = np.random.default_rng(seed)
    width = (2 ** random.integers(0, 6, n)).astype(np.int32)
    run_s = random.integers(1, 4000, n)
    gap_s = (width * run_s).mean() / PROCESSORS / load
    submit_s = np.sort(random.integers(0, int(n * gap_s), n))
    request_s = run_s * random.integers(1, 5, n)
    jobs = Jobs(np.arange(n), submit_s, run_s, request_s, width, random.integers(0, 9, n).astype(np.int32))
    return World(workload_of(jobs, PROCESSORS))


def starts(steps: Steps, known: Int64s | None = None) -> Int64s:
    found = np.full(len(steps.jobs), -1, np.int64) if known is None else known.copy()
    found[steps.started] = steps.wait_s + steps.jobs.submit_s[steps.started]
    return found


def copied(rows: npt.NDArray[np.void]) -> list[tuple[int, ...]]:
    return [tuple(row) for row in rows.tolist()]


@pytest.fixture
def new_memory_holds_anything() -> Iterator[None]:
    """What malloc gives is filled with a pattern, so that a row that is read before it was written is seen."""
    libc, m_perturb = ctypes.CDLL(None), -6
    libc.mallopt(m_perturb, 0xA5)
    yield
    libc.mallopt(m_perturb, 0)


@pytest.mark.usefixtures("new_memory_holds_anything")
@pytest.mark.parametrize("text", POLICIES)
def test_the_policys_own_pass_at_each_decision_is_its_replay_and_a_fork_goes_on_alike(text: str) -> None:
    """A fork at every 32nd decision, of which the columns of all other jobs were never written."""
    source, own = world(), policy(text)
    expected = run(source, own).start_s
    steps, at, forks = Steps(source, own), 0, []
    while not steps.is_over:
        if at % 32 == 0:
            forks.append((steps.fork(), starts(steps)))
        at += 1
        steps.decide()
        steps.advance()
    assert (starts(steps) == expected).all() and at > 200
    for fork, known in forks:
        again = fork.fork()
        while not fork.is_over:
            fork.decide()
            fork.advance()
        again.run()
        assert (starts(fork, known) == expected).all()
        assert (starts(again, known) == expected).all()


@pytest.mark.parametrize("text", ["easy", "easy-sjbf", "conservative"])
@pytest.mark.parametrize("stops", ["passes", "choices"])
def test_who_always_chooses_the_head_gets_the_policys_schedule(text: str, stops: str) -> None:
    source, own = world(seed=2), policy(text)
    steps = Steps(source, own, "choices" if stops == "choices" else "passes")
    while not steps.is_over:
        assert len(steps.queue) > (stops == "choices")
        steps.order([0])
        steps.advance()
    assert (starts(steps) == run(source, own).start_s).all()


def test_who_starts_what_easy_would_gets_its_schedule() -> None:
    source, own = world(seed=3), policy("easy")
    expected = run(source, own).start_s
    steps = Steps(source, own)
    while not steps.is_over:
        job = steps.queue["job"]
        steps.start(job[expected[job] == steps.now_s])
        steps.advance()
    assert (starts(steps) == expected).all()


def test_an_order_given_by_places_is_the_policy_with_that_order() -> None:
    source, saf = world(seed=4), policy("score:lowest=saf")
    steps = Steps(source, policy("easy"))
    while not steps.is_over:
        queue = steps.queue
        steps.order(np.lexsort((queue["job"], queue["estimate_s"] * queue["width"])))
        assert (np.diff(steps.queue["job"]) > 0).all()
        steps.advance()
    assert (starts(steps) == run(source, saf).start_s).all()


def test_one_sees_the_queue_what_runs_and_the_profile() -> None:
    jobs = Jobs(
        np.arange(3),
        np.array([0, 5, 6]),
        np.array([100, 40, 10]),
        np.array([200, 50, 20]),
        np.array([20, 30, 10], np.int32),
        np.zeros(3, np.int32),
    )
    steps = Steps(World(workload_of(jobs, PROCESSORS)), policy("easy"))
    assert (steps.now_s, steps.free, copied(steps.queue), steps.processors) == (0, 32, [(200, 0, 20)], 32)
    steps.start([0])
    assert steps.advance() and (steps.now_s, steps.free) == (5, 12)
    assert copied(steps.queue) == [(50, 1, 30)] and copied(steps.running) == [(200, 0, 20)]
    time_s, free = steps.profile
    assert (time_s.tolist(), free.tolist()) == ([5, 200], [12, 32])
    steps.decide()
    assert steps.advance() and steps.decide().tolist() == [2]
    assert steps.started.tolist() == [0, 2] and steps.wait_s.tolist() == [0, 0]
    from_s, cap_w = steps.caps
    assert len(from_s) == len(cap_w) == 1 and np.isinf(cap_w[0])
    with pytest.raises(ValueError, match="read-only"):
        steps.queue["width"] = 1


@pytest.mark.parametrize("text", ["easy", "easy-sjbf", "score:lowest=saf", "wfp3", "conservative", "fcfs"])
def test_a_fork_under_another_policy_is_what_that_policy_does_from_there(text: str) -> None:
    """Against the same jobs stepped with that policy from the fork on, in a world that always had it."""
    source = world(seed=5)
    steps = Steps(source, policy("easy"))
    for _ in range(150):
        steps.decide()
        steps.advance()
    fork, decided = steps.fork(policy(text)), starts(steps)
    fork.run()
    own = Steps(source, policy(text))
    while not own.is_over and own.now_s < steps.now_s:
        queue = own.queue["job"]
        own.start(queue[decided[queue] == own.now_s])
        own.advance()
    assert copied(own.queue[np.argsort(own.queue["job"])]) == copied(steps.queue)
    own.run()
    assert (starts(own) == starts(fork, decided)).all()


@pytest.mark.usefixtures("new_memory_holds_anything")
def test_a_blind_fork_has_no_job_to_come_and_runs_as_estimated() -> None:
    steps = Steps(world(seed=6), policy("easy"))
    for _ in range(150):
        steps.decide()
        steps.advance()
    queue, ends = set(steps.queue["job"].tolist()), steps.running["expected_end_s"].tolist()
    blind = steps.fork(blind=True)
    again = blind.fork(policy("score:lowest=saf"))
    del steps
    blind.close()
    gc.collect()
    seen = [again.now_s]
    while not again.is_over:
        again.decide()
        again.advance()
        seen.append(again.now_s)
    assert set(again.started.tolist()) == queue and len(queue) > 5
    finish = again.wait_s + again.jobs.submit_s[again.started] + again.jobs.request_s[again.started]
    assert set(seen[1:]) <= {*ends, *finish.tolist()}


def test_run_pauses_before_a_time_and_a_snapshot_stays_as_it_was() -> None:
    source, own = world(seed=7), policy("easy")
    steps = Steps(source, own)
    snapshot = steps.fork()
    before = copied(snapshot.queue)
    middle_s = int(source.jobs.submit_s[150])
    steps.run(until_s=middle_s)
    assert steps.now_s < middle_s and not steps.is_over
    steps.run()
    assert steps.is_over and (starts(steps) == run(source, own).start_s).all()
    assert copied(snapshot.queue) == before
    snapshot.run()
    assert (starts(snapshot) == starts(steps)).all()


def test_actions_that_cannot_be_are_refused_and_change_nothing() -> None:
    steps = Steps(world(seed=8), policy("easy"))
    while len(steps.queue) < 4 or steps.queue["width"][1] <= steps.free:
        steps.decide()
        steps.advance()
    ended = next(job for job in range(9) if job not in steps.queue["job"] and job not in steps.running["job"])
    wide, runs = int(steps.queue["job"][1]), int(steps.running["job"][0])
    last, submitted = len(steps.jobs) - 1, steps.jobs.submit_s
    before = copied(steps.queue), copied(steps.running), steps.free
    for given, said in (
        ([runs], f"start: job {runs} runs already"),
        ([ended], f"start: job {ended} has ended"),
        ([wide], f"start: job {wide} needs {steps.jobs.width[wide]} processors, and {steps.free} are free"),
        ([9999], f"start: no job has the index 9999; they go from 0 to {last}"),
        ([-1], f"start: no job has the index -1; they go from 0 to {last}"),
        ([last], f"start: job {last} is submitted at {submitted[last]} s, and it is {steps.now_s} s"),
        ([1.5], "start: give the indices of waiting jobs as whole numbers, not [1.5]"),
        (["a"], "start: give the indices of waiting jobs as whole numbers, not ['a']"),
    ):
        with pytest.raises(StepError, match=re.escape(said)):
            steps.start(given)  # type: ignore[arg-type]
    for places in ([0, 0], [len(steps.queue)], [-1], [0.5]):
        with pytest.raises(StepError, match="order: give places of the queue, 0 to "):
            steps.order(places)  # type: ignore[arg-type]
    for what, act in (
        ("start: give a list of whole numbers, not int 5", lambda: steps.start(5)),  # type: ignore[arg-type]
        ("start: give a list of whole numbers, not ndarray", lambda: steps.start(steps.queue["width"] < 9)),  # type: ignore[arg-type]
        ("order: give a list of whole numbers, not NoneType None", lambda: steps.order(None)),  # type: ignore[arg-type]
        ("run: until_s=1.5: give whole seconds of the log", lambda: steps.run(1.5)),  # type: ignore[arg-type]
        ("a policy is a Composition here", lambda: steps.fork("easy")),  # type: ignore[arg-type]
        ("give a World of the library, not str 'log.swf'", lambda: Steps.of("log.swf")),  # type: ignore[arg-type]
        ("a stepped world is neither copied nor pickled", lambda: copy.copy(steps)),
    ):
        with pytest.raises(StepError, match=re.escape(what)):
            act()
    assert (copied(steps.queue), copied(steps.running), steps.free) == before
    steps.run()
    for act in (steps.decide, steps.advance, steps.run, lambda: steps.start([])):
        with pytest.raises(StepError, match=r"this world is over at \d+ s, every job has ended"):
            act()


def test_a_job_that_is_given_twice_is_named() -> None:
    steps = Steps(world(seed=8), policy("easy"))
    first = int(steps.queue["job"][0])
    with pytest.raises(StepError, match=f"job {first} is given twice"):
        steps.start([first, first])
    assert steps.queue["job"].tolist() == [first]


def test_a_closed_world_says_so_and_its_forks_and_arrays_stay() -> None:
    source, own = world(seed=9), policy("easy")
    steps = Steps(source, own)
    fork, queue = steps.fork(), steps.queue
    kept = copied(queue)
    steps.close()
    gc.collect()
    looks = (lambda: steps.queue, steps.tables, lambda: steps.profile, lambda: steps.caps, lambda: steps.joules)
    for act in (steps.decide, steps.advance, steps.fork, steps.run, lambda: steps.start([0]), *looks):
        with pytest.raises(StepError, match="this world is gone: it was closed"):
            act()
    steps.close()
    assert copied(queue) == kept
    fork.run()
    assert (starts(fork) == run(source, own).start_s).all()


def test_an_order_that_raises_in_a_run_up_to_a_time_leaves_a_world_that_goes_on() -> None:
    calls, source = 0, world(seed=9)

    def order(queue: Queue, now_s: int) -> npt.NDArray[np.int64]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ZeroDivisionError("mine")
        return np.arange(len(queue.job))

    own = Composition(order=order, backfill="easy")
    steps = Steps(source, own)
    with pytest.raises(ZeroDivisionError, match="mine"):
        steps.run(until_s=int(source.jobs.submit_s[150]))
    for _ in range(2 * len(source.jobs)):
        if steps.is_over:
            break
        steps.decide()
        steps.advance()
    assert (starts(steps) == run(source, own).start_s).all()


def test_whoever_starts_nobody_comes_to_an_end_with_jobs_that_wait() -> None:
    steps = Steps(world(n=30), policy("easy"))
    while steps.advance():
        pass
    assert len(steps.queue) == 30 and steps.free == PROCESSORS
    with pytest.raises(StepError, match="30 jobs wait that nobody started"):
        steps.advance()
    assert steps.fork().is_over


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("easy:estimate=learned", "estimate=learned needs all that has happened before, and a stepped world is forked"),
        ("easy:ties=sc15", "ties=sc15 needs processors that are free before their job has ended, and a stepped world"),
        ("multifactor", "an order by priorities needs all that has happened before, and a stepped world is forked"),
    ],
)
def test_what_cannot_be_stepped_is_refused(text: str, said: str) -> None:
    with pytest.raises(StepError, match=said):
        Steps(world(n=3), choose(text).composed)


@pytest.mark.parametrize("stops", ["passes", "choices"])
def test_an_order_in_python_is_called_at_each_step_and_in_a_run(stops: Stops) -> None:
    source, own = world(seed=10), Composition(order=widest_first, backfill="easy", scan="shortest")
    expected = run(source, own).start_s
    steps = Steps(source, own, stops)
    for _ in range(60):
        steps.decide()
        steps.advance()
    with pytest.raises(StepError, match="order: this world's policy orders the queue itself"):
        steps.order([0])
    fork, known = steps.fork(), starts(steps)
    while not steps.is_over:
        steps.decide()
        steps.advance()
    fork.run()
    assert (starts(steps) == expected).all() and (starts(fork, known) == expected).all()


def test_the_tables_of_floats_are_the_queue_and_what_runs() -> None:
    steps = Steps(world(seed=6), policy("easy"))
    while len(steps.queue) < 10:
        steps.decide()
        steps.advance()
    queue, running = steps.queue, steps.running
    waiting, left = steps.tables()
    assert waiting[:, 0].tolist() == (steps.now_s - steps.jobs.submit_s[queue["job"]]).tolist()
    assert waiting[:, 1:].T.tolist() == [queue["estimate_s"].tolist(), queue["width"].tolist()]
    assert left.T.tolist() == [(running["expected_end_s"] - steps.now_s).tolist(), running["width"].tolist()]
    assert steps.tables(4)[0].tolist() == waiting[:4].tolist() and len(steps.tables(10**9)[0]) == len(queue)


def test_a_fork_estimates_as_its_world_and_an_order_is_not_for_a_policy_that_has_one() -> None:
    steps = Steps(world(), policy("easy"))
    with pytest.raises(StepError, match="the jobs wait with estimate=requested, and this policy has estimate=mean2"):
        steps.fork(policy("easy:estimate=mean2"))
    scored = steps.fork(policy("wfp3"))
    with pytest.raises(StepError, match="this world's policy orders the queue itself"):
        scored.order([0])
    scored.decide()
    with pytest.raises(StepError, match="give one of passes, choices"):
        Steps(world(), policy("easy"), "never")  # type: ignore[arg-type]
