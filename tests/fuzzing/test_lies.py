"""Nodes say anything at all that is well formed; honest nodes, their jobs and the budget do not suffer from it."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from cluster_agent.store.ledger_store import check_epoch
from foundation.wire.power_messages import Report
from tests.fuzzing.lies import DECLARED, LIARS, STEPS, Site, run

NUMBERS = st.lists(st.one_of(st.integers(0, 7), st.integers(0, 1 << 16), st.integers(0, (1 << 62) - 1)), max_size=40)


class Lies(RuleBasedStateMachine):
    """Each rule is one of ``STEPS``; its numbers are drawn beforehand, and 0 when they are used up."""

    def __init__(self) -> None:
        super().__init__()
        self.site = Site()

    @rule(name=st.sampled_from(sorted(STEPS)), numbers=NUMBERS)
    def step(self, name: str, numbers: list[int]) -> None:
        given = iter(numbers)
        STEPS[name][1](self.site, lambda: next(given, 0))
        self.site.check()

    def teardown(self) -> None:
        try:
            self.site.check_rarely()
        finally:
            self.site.__exit__()


def test_no_lie_of_a_node_harms_another_node_a_job_of_others_or_the_store() -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    given = settings(max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(Lies, settings=given)
    assert Lies.step is not None


def test_so_does_none_in_a_long_random_life() -> None:
    done = run(250, seed=1)
    assert done.total() == 250 and len(done) >= 7


def test_a_report_of_a_newer_epoch_costs_a_new_epoch_and_neither_the_jobs_nor_the_agent() -> None:
    """Found by this fuzzing: the ledger took a newer epoch, and the jobs' side still wrote under the old one, so that
    the agent took itself for deposed and ended for good."""
    with Site() as site:
        STEPS["submit"][1](site, lambda: 0)
        lie = Report(LIARS[0], "b", site.now_ns, 50, 50, 1, 100_000, "seen", -1, DECLARED)
        site.send(lie)
        site.turn()
        ledger = site.server.partition.ledger
        assert ledger.epoch == 51
        STEPS["submit"][1](site, lambda: 0)
        assert len(site.submitted) == 2
        check_epoch(site.server.database, ledger.epoch)
        site.check()
