"""easy on a machine of 10 processors, by hand."""

from __future__ import annotations

from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.policies.registry import choose
from tests.cluster_agent.traces import jobs_of, native_starts


def starts(policy: str, jobs: Jobs) -> dict[int, int]:
    return native_starts(choose(policy).composition, jobs)


def test_a_job_that_ends_by_the_reservation_overtakes_and_one_that_ends_later_does_not() -> None:
    # the head (8 wide) is reserved at 100; next to it 2 processors are left over
    jobs = jobs_of([(0, 100, 100, 6, 0), (1, 10, 10, 8, 0), (2, 98, 98, 4, 0), (3, 98, 98, 4, 0)])
    assert starts("easy", jobs) == {0: 0, 1: 100, 2: 2, 3: 110}
    too_long = jobs_of([(0, 100, 100, 6, 0), (1, 10, 10, 8, 0), (2, 99, 99, 4, 0)])
    assert starts("easy", too_long) == {0: 0, 1: 100, 2: 110}


def test_a_long_job_overtakes_on_what_the_head_leaves_over() -> None:
    jobs = jobs_of([(0, 100, 100, 6, 0), (1, 10, 10, 8, 0), (2, 500, 500, 2, 0), (3, 500, 500, 1, 0)])
    assert starts("easy", jobs) == {0: 0, 1: 100, 2: 2, 3: 110}


def test_an_early_end_starts_the_head_before_its_reservation() -> None:
    jobs = jobs_of([(0, 30, 100, 6, 0), (1, 10, 10, 8, 0)])
    assert starts("easy", jobs) == {0: 0, 1: 30}


def test_the_mean_of_two_counts_once_two_jobs_of_the_user_have_ended() -> None:
    # user 1 asks for 100 s and runs 5 and 8 s: its third job is taken to run (5 + 8) // 2 = 6 s, and overtakes
    history = [(0, 5, 100, 10, 1), (10, 8, 100, 10, 1)]
    rest = [(20, 30, 30, 6, 2), (21, 10, 10, 8, 2), (22, 5, 100, 4, 1)]
    assert starts("easy", jobs_of(history + rest))[4] == 60
    assert starts("easy:estimate=mean2", jobs_of(history + rest))[4] == 22
    assert starts("easy:estimate=mean2", jobs_of(history[1:] + rest))[3] == 60


def test_sc15_runs_a_pass_between_two_ends_of_one_instant() -> None:
    # jobs 0 and 1 end at 10, 40 s early. Together they make room for the head (2); between them only 3 fits
    jobs = jobs_of([(0, 10, 50, 5, 0), (0, 10, 50, 5, 0), (1, 20, 20, 10, 0), (2, 5, 5, 5, 0)])
    assert starts("easy", jobs) == {0: 0, 1: 0, 2: 10, 3: 30}
    assert starts("easy:ties=sc15", jobs) == {0: 0, 1: 0, 2: 15, 3: 10}


def test_sc15_counts_processors_as_free_from_the_expected_end_on() -> None:
    # at 10 job 0 is expected to end, and does; job 1 comes first, and gets its place before it has ended
    jobs = jobs_of([(0, 10, 10, 10, 0), (10, 5, 5, 10, 0)])
    assert starts("easy:ties=sc15", jobs) == starts("easy", jobs) == {0: 0, 1: 10}
