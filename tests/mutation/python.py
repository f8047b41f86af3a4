"""The Python half of ``make mutate``: which modules, which tests, and how the mutants are tried.

mutmut's and cosmic-ray's own runners were tried first. cosmic-ray starts an interpreter and imports everything for each
mutant; mutmut forks, but mutates neither properties and other decorated functions nor module level, and both know only
one set of tests. So mutmut makes the mutants (``operators``), and ``slot`` runs the tests.

Each slot, one per job, has a copy of the tree in a temporary folder: the tree itself is never written.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

from tests.mutation.operators import Mutant, mutants
from tests.mutation.results import MutationError, Result, Target

_LEDGER: Final = (
    "tests/cluster_agent/test_ledger_rules.py",
    "tests/cluster_agent/test_ledger_stored.py",
    "tests/cluster_agent/test_ledger.py",
    "tests/cluster_agent/test_ledger_columns.py",
    "tests/cluster_agent/test_ledger_world.py",
    "tests/cluster_agent/test_ledger_forgetting.py",
    "tests/fabric/test_forgetting.py",
    # these judge the world, by ledgers that lack a rule
    "--deselect=tests/cluster_agent/test_ledger_world.py::test_the_world_notices_a_rule_that_is_missing",
    "--deselect=tests/cluster_agent/test_ledger_world.py::test_the_same_seed_gives_the_same_world",
)

_CRASH: Final = (
    "tests/nodectl/test_save_after_a_crash.py",
    # a dozen seconds, for what test_saves.py notices too
    "--deselect=tests/nodectl/test_save_after_a_crash.py::test_so_it_does_where_the_disk_was_full_for_any_operations_in_a_row",
)
_SAVES: Final = (
    "tests/nodectl/test_saves_rules.py",
    "tests/nodectl/test_saves.py",
    "tests/nodectl/test_writer.py",
    *_CRASH,
    # seconds of chance, for what the others notice too
    "--deselect=tests/nodectl/test_saves.py::test_one_damaged_byte_loses_at_most_the_lines_it_touches",
)
# not tests/nodectl/test_restore.py, which starts agents to kill them: the rules are those by which it judges
_RESTORE: Final = (
    *_CRASH,
    "tests/nodectl/test_restore_rules.py",
    "tests/nodectl/test_restore_of_several_saves.py",
    "tests/nodectl/test_writer_rules.py",
    "tests/nodectl/test_writer.py",
    "tests/nodectl/test_ceilings.py",
    "tests/nodectl/test_node_save.py",
)
_DAMAGED: Final = (
    "tests/nodectl/test_damaged_save.py",
    # each byte of a save in turn: seconds, for what the others notice too
    "--deselect=tests/nodectl/test_damaged_save.py::test_a_save_that_is_cut_short_anywhere_is_kept_and_the_restore_is_not_complete",
    "--deselect=tests/nodectl/test_damaged_save.py::test_a_changed_byte_anywhere_in_a_save_is_noticed",
)
_WRITER: Final = (
    *_RESTORE,
    "tests/nodectl/test_writer_limits.py",
    "tests/nodectl/test_foreign_writers.py",
    "tests/writer_process/test_many_files.py",
)
# of what a crash leaves only the fast test: the others run a program under strace, and by_hand.toml has their mutations
_STORE: Final = (
    "tests/cluster_agent/test_store.py",
    "tests/cluster_agent/test_older_stores.py::test_a_store_from_before_counts_were_stored_in_blocks_keeps_them",
    "tests/cluster_agent/test_older_stores.py::test_a_store_of_the_version_before_checksums_opens_and_gets_them",
    "tests/fabric/test_serve.py::test_a_store_that_was_killed_while_its_tables_were_made_is_made_again",
    "tests/fabric/test_serve.py::test_a_store_whose_schema_is_no_text_is_damaged_in_one_line",
    "tests/cluster_agent/test_damaged_store.py::test_an_older_copy_of_the_store_gets_from_the_log_what_came_later",
    "tests/cluster_agent/test_commit_log.py::test_a_kill_between_the_log_and_the_database_loses_nothing_and_the_next_start_completes_the_database",
    "tests/cluster_agent/test_store_after_a_crash.py::test_a_command_that_was_refused_is_not_in_force_after_a_kill_and_one_that_was_not_is",
)
_REACTIONS: Final = (
    "tests/cluster_agent/test_cap_reactions.py",
    "tests/cluster_agent/test_policy_eco.py",
    "tests/cluster_agent/test_policy_fcfs_killer.py",
)
_GPU_POLICY: Final = (
    "tests/policies/test_gpu_estimators.py",
    "tests/policies/test_gpu_curves.py",
    "tests/policies/test_gpu_ladder.py",
)
_INTERVALS: Final = "tests/calibration/test_interval_coverage.py"
_MESSAGES: Final = ("tests/scmi/test_codec.py", "tests/scmi/test_wire_limits.py")

TARGETS: Final = (
    Target("nodectl/member/lease.py", ("tests/nodectl/test_lease.py",)),
    Target("nodectl/decide/node_cap.py", ("tests/nodectl/test_node_cap.py",)),
    Target(
        "nodectl/member/cluster_cap.py",
        (
            "tests/nodectl/test_cluster_cap_alone.py",
            "tests/nodectl/test_cluster_cap_energy.py",
            "tests/nodectl/test_cluster_cap.py",
        ),
    ),
    Target("nodectl/write/saves.py", _SAVES),
    Target("nodectl/write/writer.py", _WRITER),
    Target("nodectl/write/restore.py", (*_RESTORE, *_DAMAGED)),
    Target(
        "pmu/decode.py",
        (
            "tests/pmu/test_decode.py",
            "tests/pmu/test_columns.py",
            "tests/pmu/test_progress.py",
            "tests/pmu/test_rapl.py",
        ),
    ),
    Target("firmware_bridge/scmi/messages/codec.py", ("tests/scmi/test_codec.py",)),
    Target("cluster_agent/budget/accounts.py", _LEDGER),
    Target("cluster_agent/budget/ledger.py", _LEDGER),
    Target("cluster_agent/store/ledger_store.py", _STORE),
    Target("cluster_agent/store/database.py", _STORE),
    Target("foundation/student.py", (_INTERVALS,), is_safety=False),
    Target(
        "calibration/measure/pooled_means.py", (_INTERVALS, "tests/calibration/test_pstate_table.py"), is_safety=False
    ),
    Target("calibration/table/clock_curve.py", (_INTERVALS, "tests/calibration/test_pstate_table.py"), is_safety=False),
    Target("calibration/table/policy_values.py", ("tests/calibration/test_policy_values.py",), is_safety=False),
    Target(
        "calibration/gpu_table/clock_sweep.py", (_INTERVALS, "tests/calibration/test_gpu_table.py"), is_safety=False
    ),
    Target(
        "calibration/model/application_model.py",
        (_INTERVALS, "tests/calibration/test_application_model.py"),
        is_safety=False,
    ),
    Target("cluster_agent/scheduler/cap_reactions.py", _REACTIONS, is_safety=False),
    Target("nodectl/policies/parts/gpu_phases.py", _GPU_POLICY, is_safety=False),
    Target("nodectl/policies/parts/gpu_course.py", _GPU_POLICY, is_safety=False),
    Target("nodectl/policies/parts/gpu_estimators.py", _GPU_POLICY, is_safety=False),
    Target("firmware_bridge/scmi/messages/message.py", _MESSAGES, is_safety=False),
    Target("firmware_bridge/scmi/messages/value_layout.py", _MESSAGES, is_safety=False),
)

_NOT_COPIED: Final = (".git", ".venv", "out", "build", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info")


def try_mutants(root: Path, targets: Sequence[Target], jobs: int, every: int) -> Iterator[Result]:
    """As ``results`` describes."""
    with tempfile.TemporaryDirectory(prefix="mutate-", ignore_cleanup_errors=True) as folder:
        trees = [Path(folder).resolve() / f"{n}" for n in range(jobs)]
        for tree in trees:
            _copy(root, tree)
        for target in targets:
            with _Slot(trees[0], target) as slot:
                slot.begin(slot.original, {}, record=folder + "/durations")
                made = mutants(target.file, slot.original)[::every]  # meanwhile
                if slot.end()["outcome"] != "survived":
                    raise MutationError(f"{' '.join(target.tests)}: fail without any mutation:\n{slot.log()}")
            yield from _try_all(trees, target, made, json.loads(Path(folder, "durations").read_text()))


def _copy(root: Path, tree: Path) -> None:
    shutil.copytree(root, tree, ignore=shutil.ignore_patterns(*_NOT_COPIED), symlinks=True)
    (tree / ".venv").symlink_to(root / ".venv")
    shared = tree.parent / "shared"  # data next to the checkout, where there is some
    if (root.parent / "shared").is_dir() and not shared.exists():
        shared.symlink_to((root.parent / "shared").resolve())


class _Slot:
    """The driver's end of one ``slot``."""

    def __init__(self, tree: Path, target: Target) -> None:
        self._tree, self._file = tree, tree / target.file
        self.original = self._file.read_text()
        self._channel, theirs = socket.socketpair()
        self._answers = self._channel.makefile("r")
        with theirs, open(tree.with_suffix(".log"), "w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.mutation.slot", str(theirs.fileno()), target.file, *target.tests],
                cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.end()  # it has collected the tests

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._channel.close()  # ends the process
        self._process.wait()
        self._file.write_text(self.original)

    def begin(self, source: str, durations: dict[str, float], record: str = "") -> None:
        """Run the tests against this text of the file."""
        request = {"source": source, "durations": durations, "record": record}
        self._channel.sendall(json.dumps(request).encode() + b"\n")

    def end(self) -> dict[str, Any]:
        """The answer; ``MutationError`` if none comes."""
        line = self._answers.readline()
        if not line:
            raise MutationError(f"{self._file.name}: the tests end by themselves:\n{self.log()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def log(self) -> str:
        """What pytest printed."""
        return self._tree.with_suffix(".log").read_text()


def _try_all(
    trees: Sequence[Path], target: Target, todo: Sequence[Mutant], durations: dict[str, float]
) -> Iterator[Result]:
    left: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    done: queue.SimpleQueue[Result | Exception | None] = queue.SimpleQueue()
    for mutant in todo:
        left.put(mutant)

    def work(tree: Path) -> None:
        try:
            with _Slot(tree, target) as slot:
                while not left.empty():
                    one = left.get_nowait()
                    slot.begin(one.source, durations)
                    answer = slot.end()
                    done.put(Result(one.mutation, answer["outcome"], answer["seconds"], one.line))
        except queue.Empty:
            pass
        except Exception as error:
            done.put(error)
        done.put(None)

    threads = [threading.Thread(target=work, args=(tree,), daemon=True) for tree in trees]
    for thread in threads:
        thread.start()
    working = len(threads)
    while working:
        result = done.get()
        if isinstance(result, Exception):
            raise result
        if result is None:
            working -= 1
        else:
            yield result
