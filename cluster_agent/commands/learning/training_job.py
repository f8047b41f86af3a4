"""``clusterctl models train --submit``: the training waits in the queue and runs on a node, below the budget."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from cluster_agent.errors import WrongUseError
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.jobs.job import LONGEST_S
from cluster_agent.serve.people_protocol import Submit
from foundation.shell.duration import seconds


def submit_training(socket: Place, name: str, folder: Path, walltime: str, given: Mapping[str, str | None]) -> int:
    """Queue the same command as a job of this user on one node, which has to have this program and the folder; its
    number. ``given``: options of the training; without ``--from`` or ``--inlets`` it takes the jobs of the ring."""
    walltime_s = seconds(walltime)
    if not 1 <= walltime_s <= LONGEST_S:
        raise WrongUseError(f"--time {walltime}: give 1 second to {LONGEST_S // 86_400} days")
    program = Path(sys.executable).with_name("clusterctl")
    command = [str(program), "models", "train", name, "--folder", str(folder.resolve()), *_options(given)]
    return ask(socket, Submit(command=command, walltime_s=walltime_s, workdir=str(folder.resolve()),
                              name=f"train-{name}", output=f"train-{name}-%j.out"))  # fmt: skip


def _options(given: Mapping[str, str | None]) -> Iterator[str]:
    if given.get("--from") is None and "--inlets" not in given:
        yield "--kept"
        return
    for option, value in given.items():
        if value is not None:
            yield from (option, str(Path(value).resolve()) if Path(value).is_file() else value)
