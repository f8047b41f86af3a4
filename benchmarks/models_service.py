"""A run of ``clusterctl models``, end to end, and how its alarms and its shipped model do. EMULATED histories.

*Run*: so many ended jobs wait in the ring; champion and candidate, each trained on 100,000 earlier jobs, predict all of
them, their errors are compared, drift is judged and what comes of it is published. After imports, from the opening of
the ring and the models to the last file on the disk; each in a process of its own, whose highest memory is reported.
*all different*: no two jobs have the same request, the worst case, without a bound. *by command*: ``clusterctl models
run`` with the start of Python, and a cluster agent's socket that answers with these jobs. Published for ExaMon's
pipeline on Kubeflow: 4.3, 10.5 and 55.2 s (REGALE D2.3; 6.5 GB while idle).

*Model*: the table of groups against the nearest past jobs, which learn on line. What was chosen (no shrinkage, the
levels) was chosen on the first half of each log, the second is judged. *Promotion*: whether `promote` takes a first
champion that was trained on the whole log. *Alarms*: a champion of the first half meets the second half: unchanged, and
with all watts 1.5 times as high from its middle on. The step of an alarm was chosen with the second halves in view: the
table of alarms shows what it does, and judges it on no data of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import power_prediction
from benchmarks.experiment import save
from cluster_agent.fabric.admin import AdminSocket
from cluster_agent.history.job_history import HistoryRow
from cluster_agent.library.given import World
from cluster_agent.library.power_logs import read_power_log
from cluster_agent.model_service.group_table import trained
from cluster_agent.model_service.job_records import EndedJob, JobWords, open_ring
from cluster_agent.model_service.job_ring import Records
from cluster_agent.model_service.model_registry import Change, Registry
from cluster_agent.model_service.model_training import judged as judged_at_training
from cluster_agent.model_service.model_training import train
from cluster_agent.model_service.on_line_errors import LEAST_WINDOW, WINDOW, drift, errors, errors_of, shares_of
from cluster_agent.prediction.evaluation import LoggedJob, on_line
from cluster_agent.prediction.job_power import Submission
from cluster_agent.serve.people_protocol import MOST_ROWS, ListHistory, ListJobs
from foundation.shell.text_table import render

ROOT: Final = Path(__file__).parent.parent
SIZES: Final = {1_000: 0.2, 100_000: 0.5, 5_000_000: 4.0}
"""Points, and the seconds that a run may take after imports."""

PUBLISHED_S: Final = {1_000: 4.3, 100_000: 10.5, 5_000_000: 55.2}
MOST_MB, COMMAND_S = 1000, 0.8
TRAINED: Final = 100_000
USERS, PROGRAMS = 500, 5
REPEATS: Final = 5
AS_USERS_ARE: Final = "as users are"
SEED: Final = 11

RUN: Final = """
import json, resource, sys, time
from pathlib import Path
from cluster_agent.model_service.job_records import JobWords, open_ring
from cluster_agent.model_service.model_registry import Registry, locked
from cluster_agent.model_service.model_run import Waiting, run_model, write_metrics
import numpy, zipfile
folder, kept = Path(sys.argv[1]), int(sys.argv[2])
began_s, used_s = time.perf_counter(), time.process_time()
with locked(folder):
    ring = open_ring(folder, kept)
    found = run_model(Registry(folder, "watts"), ring, JobWords(folder), [])
    write_metrics(folder / "models.prom", [found])
    ring.close()
took_s = time.perf_counter() - began_s, time.process_time() - used_s
assert found.state.pairs.jobs > 0 and ring.damaged == 0, found
print(json.dumps([*took_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3]))
"""


class Jobs:
    """An emulated history: users with a few programs, some of them run far more often than others."""

    def __init__(self, words: JobWords) -> None:
        self._random = np.random.default_rng(SEED)
        self.kinds = USERS * PROGRAMS
        self.submissions = [
            Submission(f"user{kind // PROGRAMS}", f"run{chr(97 + kind % PROGRAMS)}", nodes, nodes, 0, 0, 0, walltime_s)
            for kind, nodes, walltime_s in zip(
                range(self.kinds), (2 ** self._random.integers(0, 6, self.kinds)).tolist(),
                self._random.choice([3600, 7200, 14_400, 86_400], self.kinds).tolist(), strict=True,
            )
        ]  # fmt: skip
        self._records = words.submitted(self.submissions)
        self._node_w = self._random.uniform(120, 380, self.kinds)
        shares = 1 / self._random.permutation(np.arange(1, self.kinds + 1)) ** 0.7
        self._shares = shares / shares.sum()

    def ended(self, count: int, begin_s: float, is_different: bool = False) -> tuple[Records, list[int]]:
        """One every ten seconds; and the kind of each."""
        kinds = self._random.choice(self.kinds, count, p=self._shares)
        found = self._records[kinds]
        found["job"] = np.arange(count) + int(begin_s)
        if is_different:
            found["request_s"] = self._random.permutation(2**31 // count * np.arange(count))
        found["submitted_s"] = begin_s + 10.0 * np.arange(count)
        found["ended_s"] = found["submitted_s"] + 600.0
        found["node_w"] = self._node_w[kinds] * self._random.lognormal(0, 0.08, count)
        found["most_w"] = 1.1 * found["node_w"]
        return found, kinds.tolist()


def fill(folder: Path, count: int, is_different: bool) -> float:
    """A folder of models whose ring has so many jobs that no run has read; the seconds that writing these took."""
    words = JobWords(folder, is_made=True)
    jobs, registry = Jobs(words), Registry(folder, "watts")
    for _ in range(2):
        train(registry, jobs.ended(TRAINED, 0.0)[0])
    registry.change(Change(1, 0, 0.0, "benchmark", "the first", is_forced=True))
    ring = open_ring(folder, max(count, 1000))
    records = jobs.ended(count, 1e8, is_different)[0]
    began_s = time.perf_counter()
    ring.append(records)
    took_s = time.perf_counter() - began_s
    ring.close()
    return took_s


def timed(count: int, is_different: bool, repeats: int) -> dict[str, float | int | str]:
    """Medians of runs on the same jobs."""
    with folder_of_models() as folder:
        filled = [sys.executable, "-m", "benchmarks.models_service", "--fill", str(folder), str(count),
                  str(int(is_different))]  # fmt: skip
        written_s = float(subprocess.run(filled, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
        runs = []
        for _ in range(repeats):
            (folder / "watts" / "run.json").unlink(missing_ok=True)
            done = subprocess.run(
                [sys.executable, "-c", RUN, str(folder), str(count)],
                cwd=ROOT,
                check=True,
                capture_output=True,
                text=True,
            )
            runs.append(json.loads(done.stdout))
    wall_s, used_s, megabytes = (statistics.median(column) for column in zip(*runs, strict=True))
    return {
        "points": count, "jobs": "all different" if is_different else AS_USERS_ARE, "wall_s": wall_s,
        "processor_s": used_s, "most_mb": megabytes, "written_s": written_s,
    }  # fmt: skip


@contextmanager
def folder_of_models() -> Iterator[Path]:
    (ROOT / "out").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=ROOT / "out"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def by_command(count: int, repeats: int) -> list[tuple[float, float]]:
    """Wall and processor seconds of the whole command, the agent's answer to its request included."""
    import select

    with folder_of_models() as folder, tempfile.TemporaryDirectory() as place:
        fill(folder, 1000, False)
        jobs, now_s = Jobs(JobWords(folder)), time.time()
        records, kinds = jobs.ended(count, now_s - 10.0 * count - 3600.0)
        rows = [
            HistoryRow(
                job=str(at), user=jobs.submissions[kind].user, application=jobs.submissions[kind].text,
                nodes=jobs.submissions[kind].units, submitted_s=float(one["submitted_s"]),
                began_s=float(one["submitted_s"]), ended_s=float(one["ended_s"]), run_s=600.0,
                request_s=jobs.submissions[kind].request_s, watts=float(one["node_w"]) * jobs.submissions[kind].units,
            )
            for at, (one, kind) in enumerate(zip(records, kinds, strict=True))
        ]  # fmt: skip
        path, ends = Path(place) / "agent.sock", threading.Event()
        admin = AdminSocket(path, {
            ListHistory: lambda caller, request: [one for one in rows if one.ended_s > request.since_s][:MOST_ROWS],
            ListJobs: lambda caller, request: [],
        })  # fmt: skip

        def serve() -> None:
            while not ends.is_set():
                interests = admin.interests()
                ready = select.select(
                    [fd for fd, writes in interests.items() if not writes],
                    [fd for fd, writes in interests.items() if writes], [], 0.05,
                )  # fmt: skip
                for descriptor in (*ready[0], *ready[1]):
                    admin.serve(time.monotonic(), descriptor)

        thread = threading.Thread(target=serve)
        thread.start()
        took = []
        ring = (folder / "jobs.ring").read_bytes()
        try:
            for _ in range(repeats):
                (folder / "jobs.ring").write_bytes(ring)
                (folder / "watts" / "run.json").unlink(missing_ok=True)
                began_s = time.perf_counter()
                running = subprocess.Popen(
                    [str(Path(sys.executable).parent / "clusterctl"), "models", "run", "--folder", str(folder),
                     "--socket", str(path)], cwd=ROOT, stdout=subprocess.PIPE,
                )  # fmt: skip
                output = running.stdout.read() if running.stdout else b""
                _, status, used = os.wait4(running.pid, 0)
                running.returncode = os.waitstatus_to_exitcode(status)
                took.append((time.perf_counter() - began_s, used.ru_utime + used.ru_stime))
                if not output.startswith(f"{count} jobs have ended".encode()):
                    raise SystemExit(f"models_service: the command said {output!r}")
        finally:
            ends.set()
            thread.join()
            admin.close()
    return took


# --- the model and its alarms


def logged() -> dict[str, list[LoggedJob]]:
    """In the order of submission."""
    found = {"generated": power_prediction.generated()}
    if power_prediction.DATA.exists():
        found["eurora"] = power_prediction.eurora()
    if power_prediction.KTH.exists():
        world = World(str(power_prediction.KTH), machine="generic:nodes=100,cores=1", job_watts="generated")
        found["KTH-SP2, generated watts"] = read_power_log(world).jobs
    if len(found) < 3:
        print("models_service: the logs of ../shared/data are not here: generated jobs only", file=sys.stderr)
    return {name: sorted(jobs, key=lambda job: job.submit_s) for name, jobs in found.items()}


def records_of(jobs: Sequence[LoggedJob], folder: Path) -> Records:
    ended = (EndedJob(str(at), job.submission, job.submit_s, job.end_s, job.watts, job.maximum_w)
             for at, job in enumerate(jobs))  # fmt: skip
    return JobWords(folder, is_made=True).records(ended)


def judged(name: str, jobs: list[LoggedJob], trainings: int) -> dict[str, float | int | str]:
    """Of the second half: a table that is trained again so many times, against the nearest past jobs."""
    with tempfile.TemporaryDirectory() as folder:
        records = records_of(jobs, Path(folder))
    half = len(records) // 2
    drawn_w = records["node_w"][half:].astype(np.float64)
    nearest_w = np.array([one.typical_w for one in on_line(power_prediction.nearest(), jobs)])[half:]
    nearest_w /= np.array([job.submission.units for job in jobs])[half:]
    table_w = np.empty(len(drawn_w))
    for part in np.array_split(np.arange(len(drawn_w)), trainings):
        known = records[records["ended_s"] < records["submitted_s"][half + part[0]]]
        table_w[part] = trained(known).predict(records[half + part]).watts[:, 0]
    found: dict[str, float | int | str] = {"data": name, "jobs": len(drawn_w), "trainings": trainings}
    for way, watts in (("table", table_w), ("nearest", nearest_w)):
        found[f"{way}_error"] = float(errors(watts, drawn_w).mean())
        found[f"{way}_median_pct"] = 100 * float(np.median(np.abs(watts / drawn_w - 1)))
    return found


def promotion(name: str, jobs: list[LoggedJob]) -> dict[str, str]:
    """What `promote` answers to a first champion of the whole log."""
    with tempfile.TemporaryDirectory() as folder:
        found = judged_at_training(records_of(jobs, Path(folder)))
    if found.gain is None or found.gain_low is None or found.gain_high is None:
        return {"data": name, "lower_by": "-", "promoted": "no: too few users and days compare it"}
    interval = f"{found.gain:+.4f} ({found.gain_low:+.4f} to {found.gain_high:+.4f})"
    return {"data": name, "lower_by": interval, "promoted": "yes" if found.gain_low > 0 else "no"}


def alarms(name: str, jobs: list[LoggedJob], step: int = 50) -> dict[str, float | int | str | None]:
    """Runs every ``step`` jobs: at how many the inputs of an unchanged second half are others than those of the
    training, and at how many it would be rolled back; and after how many jobs a changed one is."""
    with tempfile.TemporaryDirectory() as folder:
        records = records_of(jobs, Path(folder))
    half = len(records) // 2
    known, later = records[:half], records[half:]
    known = known[known["ended_s"] < later["submitted_s"][0]]
    fifth = known[: 4 * len(known) // 5]
    error = float(errors_of(known[len(fifth) :], trained(fifth).predict(known[len(fifth) :]).watts[:, 0]).mean())
    table, shares, known_s = trained(known), shares_of(known), float(known["ended_s"].max())
    looks = range(LEAST_WINDOW, len(later), step)

    def at(records: Records, end: int) -> tuple[bool, bool]:
        found = drift(table, shares, known_s, error, records[max(0, end - WINDOW) : end])
        return bool(found.drifted), bool(found.problem)

    unchanged = [at(later, end) for end in looks]
    changed = later.copy()
    middle = len(later) // 2
    changed["node_w"][middle:] *= 1.5
    first = next((end for end in looks if end > middle and at(changed, end)[1]), None)
    return {
        "data": name, "looks": len(looks), "inputs_are_others": sum(one for one, _ in unchanged),
        "rollbacks": sum(one for _, one in unchanged), "noticed_after_jobs": None if first is None else first - middle,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks models_service", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two runs each, and not the largest ring twice")
    parser.add_argument("--fill", nargs=3, metavar=("FOLDER", "POINTS", "DIFFERENT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.fill:
        folder, count, is_different = options.fill
        print(fill(Path(folder), int(count), bool(int(is_different))))
        return 0
    repeats = 2 if options.quick else REPEATS
    cases = [(count, False) for count in SIZES] + ([] if options.quick else [(max(SIZES), True)])
    runs = [timed(count, is_different, repeats) for count, is_different in cases]
    print("run of champion and candidate, EMULATED history, after imports")
    print(render(
        ("points", "jobs", "s", "allowed", "published", "processor s", "MB", "written before in s"),
        [(str(one["points"]), str(one["jobs"]), f"{one['wall_s']:.3f}", f"{SIZES[int(one['points'])]:g}",
          f"{PUBLISHED_S[int(one['points'])]:g}", f"{one['processor_s']:.3f}", f"{one['most_mb']:.0f}",
          f"{one['written_s']:.3f}") for one in runs],
    ))  # fmt: skip
    command = by_command(1000, repeats + 2)[1:]
    wall_s, used_s = (statistics.median(column) for column in zip(*command, strict=True))
    print(f"by command with start, 1,000 jobs from an agent's socket: {wall_s:.2f} s (allowed {COMMAND_S:g}), processor"
          f" {used_s:.2f} s; load {os.getloadavg()[0]:.1f}")  # fmt: skip
    logs = logged()
    models = [judged(name, jobs, trainings) for name, jobs in logs.items() for trainings in (1, 10)]
    print(render(
        ("data, second half", "jobs", "trainings", "table's error", "nearest's", "table's median %", "nearest's"),
        [(str(one["data"]), str(one["jobs"]), str(one["trainings"]), f"{one['table_error']:.4f}",
          f"{one['nearest_error']:.4f}", f"{one['table_median_pct']:.1f}", f"{one['nearest_median_pct']:.1f}")
         for one in models],
    ))  # fmt: skip
    promotions = [promotion(name, jobs) for name, jobs in logs.items()]
    print(render(("data, last fifth", "table's error is lower by", "promoted"),
                 [tuple(one.values()) for one in promotions]))  # fmt: skip
    found = [alarms(name, jobs) for name, jobs in logs.items()]
    print(render(
        ("data, second half", "looks", "PSI above 0.25", "alarms", "watts x 1.5 noticed after jobs"),
        [tuple("-" if value is None else str(value) for value in one.values()) for one in found],
    ))  # fmt: skip
    save("models_service", {"runs": runs, "command_s": wall_s, "command_processor_s": used_s, "models": models,
                            "promotions": promotions, "alarms": found})  # fmt: skip
    is_fast = all(
        float(one["wall_s"]) <= SIZES[int(one["points"])] and float(one["most_mb"]) <= MOST_MB
        for one in runs
        if one["jobs"] == AS_USERS_ARE
    )
    return 0 if is_fast and wall_s <= COMMAND_S else 1


if __name__ == "__main__":
    sys.exit(main())
