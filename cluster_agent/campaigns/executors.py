"""Who runs the workers of a campaign: this process, processes of this machine, an array of Slurm, a Dask cluster.

All of them work on the campaign's folder, so they can be mixed, and one that ends early loses nothing.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, Final

from cluster_agent.campaigns.campaign_folder import CampaignFolder
from cluster_agent.campaigns.worker import Worker, ends_on_sigterm, name_of_worker, worker_command
from cluster_agent.errors import ClusterError
from foundation.shell.command_line import needs_extras

PATIENCE_S: Final = 10.0
"""Ours: for how long a worker may take to give its cell back."""
MOST_EARLY: Final = 3
"""Ours: so many workers in a row that are killed before they claim a cell are not replaced."""
LOOK_S: Final = 0.05
"""Ours: how often it is looked whether workers have ended."""

Advance = Callable[[int], None]
"""Gets how many cells are no longer to be done."""


def run_here(folder: CampaignFolder, workers: int, advance: Advance) -> None:
    """Until nothing is left: in this process, or in so many others. ``KeyboardInterrupt`` comes through when all of
    them have given their cells back."""
    with ends_on_sigterm():
        if workers == 1:
            one = Worker(folder)
            one.run(lambda: advance(one.recorded + one.failed + one.lost))
        else:
            LocalWorkers(folder, workers).run(advance)


class LocalWorkers:
    """Worker processes of this machine. One that was killed is replaced, and its cell waits again at once."""

    def __init__(self, folder: CampaignFolder, workers: int) -> None:
        self._folder, self._workers = folder, workers
        self._running: dict[subprocess.Popen[bytes], IO[bytes]] = {}

    def _start(self) -> None:
        said = tempfile.TemporaryFile()  # noqa: SIM115 # as long as its process
        # in a group of its own: Ctrl-C reaches this process, which then ends the others
        command = worker_command(self._folder.root)
        one = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=said, process_group=0)
        self._running[one] = said

    def run(self, advance: Advance) -> None:
        """Until all have ended; ``ClusterError`` with what the first one has said that could not work."""
        begun, early, why = self._folder.unfinished(), 0, ""
        try:
            for _ in range(self._workers):
                self._start()  # Ctrl-C between two of them ends the first
            while self._running:
                time.sleep(LOOK_S)
                for one in [one for one in self._running if one.poll() is not None]:
                    had_claim = self._free(one)
                    early = 0 if had_claim else early + 1
                    said = self._running.pop(one)
                    # in the middle of a cell, whatever its status says, or by a signal
                    if had_claim or (one.returncode < 0 and early < MOST_EARLY):
                        self._start()
                    elif one.returncode:
                        why = why or last_line(said, one.returncode)
                advance(begun - self._folder.unfinished())
        except BaseException:
            self._end()
            raise
        if why and self._folder.unfinished():
            raise ClusterError(why)

    def _free(self, one: subprocess.Popen[bytes]) -> bool:
        """Take the claims of a process that is gone; whether there were any."""
        begins = name_of_worker(one.pid)
        claims = [claim for claim, worker in self._folder.claims() if worker.startswith(begins)]
        return sum(self._folder.take(claim) for claim in claims) > 0

    def _end(self) -> None:
        for one in self._running:
            one.terminate()
        until_s = time.monotonic() + PATIENCE_S
        for one in self._running:
            try:
                one.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
            with contextlib.suppress(OSError):
                self._free(one)


def last_line(said: IO[bytes], status: int) -> str:
    """What a process has said last."""
    said.seek(0)
    return (said.read().decode(errors="replace").strip().splitlines() or [f"a worker has ended with {status}"])[-1]


# --- Slurm

SCRIPT: Final = """\
#!/bin/sh
# Each task of this array is a worker of a campaign. Submit it as often as you like: a task that finds nothing ends.
#SBATCH --job-name=campaign
#SBATCH --array=1-{workers}
#SBATCH --ntasks=1
exec {python} -m cluster_agent.cli campaign --join {folder}
"""


def submit_to_slurm(folder: CampaignFolder, workers: int, options: Sequence[str]) -> str:
    """Write the script of a job array of so many workers and submit it; returns the job's number.

    ``ClusterError`` if it cannot be submitted: the script stays, for other ways to submit it.
    """
    script = folder.state / "join.sbatch"
    words = {"python": shlex.quote(sys.executable), "folder": shlex.quote(str(folder.root))}
    script.write_text(SCRIPT.format(workers=workers, **words))
    command = ["sbatch", "--parsable", f"--output={folder.state}/slurm-%A_%a.log", *options, str(script)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise ClusterError(f"sbatch: {error.strerror}; submit {script} where Slurm is") from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ClusterError(f"sbatch: {why}; {script} is what was to be submitted")
    return done.stdout.strip().partition(";")[0]


# --- Dask


def run_on_dask(folder: CampaignFolder, address: str, advance: Advance) -> None:
    """Until nothing is left, by a worker for each thread of a Dask cluster whose workers share the folder. They go on
    after a ``KeyboardInterrupt`` here."""
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise ClusterError(f"--dask {address}: {needs_extras(['distributed'])}") from None
    try:
        client = Client(address, timeout=PATIENCE_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(f"--dask {address}: no scheduler answers there: {error}") from None
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise ClusterError(f"--dask {address}: the cluster has no worker; start some with `dask worker {address}`")
        begun = folder.unfinished()
        tasks: list[Any] = [
            client.submit(join_in_process, str(folder.root), number, pure=False, retries=2) for number in range(threads)
        ]
        while not all(task.done() for task in tasks):
            time.sleep(LOOK_S)
            advance(begun - folder.unfinished())
        failed = [why for why in client.gather(tasks, errors="skip") if why]
    if failed and folder.unfinished():
        raise ClusterError(f"--dask {address}: {failed[0]}")


def join_in_process(directory: str, number: int) -> str:
    """A task of Dask: a worker as a process below it, since a replay may need the working directory for itself.
    Returns why it has failed; nothing if it has not."""
    with tempfile.TemporaryFile() as said:
        status = subprocess.run(worker_command(directory), stdin=subprocess.DEVNULL, stderr=said).returncode
        return last_line(said, status) if status else ""
