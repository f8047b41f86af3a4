"""The native engine under AddressSanitizer and UndefinedBehaviorSanitizer: switch-off, caps, budgets, closed loops."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from cluster_agent.build_native import CSRC, ROOT, SOURCES, ffibuilder
from tests.waiting import LONG_S, processor_time

RUN = """
import sys
import cluster_agent
cluster_agent.__path__.insert(0, sys.argv[1])
import pytest
from cluster_agent import _native
assert _native.__file__.startswith(sys.argv[1])
sys.exit(pytest.main(sys.argv[2:]))
"""
"""Other tests, with the sanitized module in place of the package's own."""
TESTS = [
    "tests/cluster_agent/test_idle_off.py",
    "tests/cluster_agent/test_kept_on.py::test_nodes_boot_before_the_step_of_a_profile_and_go_off_after_it",
    "tests/cluster_agent/test_kept_on.py::test_a_job_gets_nodes_while_they_boot_ahead",
    "tests/cluster_agent/test_replay_moldable_command.py::"
    "test_in_a_closed_loop_jobs_come_as_others_leave_and_a_scheduler_that_gets_the_events_decides_the_same[rmap]",
    "tests/cluster_agent/test_closed_loop.py::test_a_job_that_another_precedes_comes_after_its_end",
    "tests/cluster_agent/test_closed_loop.py::test_with_kills_frequencies_and_watts_of_single_jobs_too",
    "tests/cluster_agent/test_policy_energy_budget.py::test_the_engines_agree_on_a_crowded_machine_with_a_budget",
    "tests/cluster_agent/test_policy_energy_budget.py::"
    "test_the_engines_agree_on_a_crowded_machine_with_a_place_in_joules_for_everybody",
    "tests/cluster_agent/test_power_engines_agree.py::test_nodes_go_off_and_boot_with_single_events_too",
    "tests/cluster_agent/test_jobs_of_one_kind.py",
    "tests/cluster_agent/test_node_engines_agree.py",
    "tests/cluster_agent/test_stepping.py::"
    "test_the_policys_own_pass_at_each_decision_is_its_replay_and_a_fork_goes_on_alike[easy-sjbf]",
    "tests/cluster_agent/test_stepping.py::test_an_order_given_by_places_is_the_policy_with_that_order",
    "tests/cluster_agent/test_stepping.py::test_a_blind_fork_has_no_job_to_come_and_runs_as_estimated",
    "tests/cluster_agent/test_stepping.py::test_actions_that_cannot_be_are_refused_and_change_nothing",
    "tests/cluster_agent/test_stepping.py::test_a_closed_world_says_so_and_its_forks_and_arrays_stay",
    "tests/cluster_agent/test_stepping_power.py::"
    "test_with_watts_the_policys_own_passes_are_its_replay_and_a_fork_goes_on_alike[powercap:kill=true]",
    "tests/cluster_agent/test_stepping_power.py::"
    "test_on_nodes_the_policys_own_passes_are_its_replay_and_a_fork_goes_on_alike[easy-capped:placing=pack]",
    "tests/cluster_agent/test_stepping_power.py::test_starts_that_watts_forbid_are_refused_and_change_nothing",
    "tests/cluster_agent/test_stepping_power.py::test_starts_that_nodes_forbid_are_refused_and_change_nothing",
    "tests/cluster_agent/test_warm_start.py::"
    "test_after_another_policy_both_engines_carry_out_its_starts_and_go_on_alike",
    "tests/cluster_agent/test_warm_watts.py::"
    "test_after_another_policy_with_watts_its_starts_are_carried_out_and_both_engines_go_on_alike",
    "tests/cluster_agent/test_warm_traces.py::"
    "test_on_nodes_another_policy_starts_from_where_the_jobs_are_and_both_engines_go_on_alike",
    "tests/cluster_agent/test_warm_traces.py::test_in_a_closed_loop_another_policy_starts_from_the_same_submissions",
    "tests/cluster_agent/test_plan_phase.py",
    "tests/cluster_agent/test_policy_planned.py",
    "tests/cluster_agent/test_serial_plans.py",
    "tests/cluster_agent/test_power_invariants.py",
    "tests/cluster_agent/test_power_engines_agree.py::test_a_place_for_everybody_is_planned_in_watts_too",
    "tests/frozen/test_frozen_schedules.py::test_the_worlds_of_the_sanitizers_have_the_frozen_schedules",
]

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is missing: install gcc"),
    pytest.mark.timeout(LONG_S),
]


def test_nodes_that_switch_off_under_caps_and_budgets_and_closed_loops_upset_no_sanitizer(tmp_path: Path) -> None:
    ffibuilder.emit_c_code(str(tmp_path / "_native.c"))
    sources = [str(tmp_path / "_native.c"), *(str(ROOT / CSRC / source) for source in SOURCES)]
    includes = [f"-I{ROOT / CSRC}", f"-I{sysconfig.get_path('include')}"]
    module = str(tmp_path / "_native.abi3.so")
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    flags = ["-std=c11", "-O1", "-g", "-fPIC", "-shared", "-ffp-contract=off", *sanitizers]
    built = subprocess.run(
        ["gcc", *flags, *includes, "-o", module, *sources],
        capture_output=True,
        text=True,
    )
    if "asan" in built.stderr and "cannot find" in built.stderr:
        pytest.skip("the sanitizers' libraries are missing: install libgcc-12-dev")
    assert built.returncode == 0, built.stderr
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    ran = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path), "-q", "-p", "no:cacheprovider", *TESTS],
        env={**os.environ, "LD_PRELOAD": runtime.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=processor_time(600),
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
