"""An administrator ends a job of any user, with a key of role admin: ``clusterctl cancel --key FILE JOB``.

Nobody has a list of the jobs, so all nodes are queried, some at a time, until one answers that it leads the job. That
one has the cancellation in its journal before it answers, and ends the job as it does for the job's user, whose task
manager hears who cancelled it. The other nodes change nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import zmq

from cluster_agent.dispatch import messages as m
from cluster_agent.dispatch.live.dispatch_frames import frame_of, read_frame
from cluster_agent.dispatch.live.manager_links import dealer, key_of
from cluster_agent.dispatch.live.partition_file import read_nodes
from cluster_agent.errors import WrongUseError
from cluster_agent.fabric.allowed import Allowed
from foundation.shell.names import first_of
from foundation.wire.keys import read_pair
from foundation.wire.power_messages import WireError

AT_ONCE: Final = 256
"""Ours: so many nodes are queried at a time; each takes a socket."""
ANSWER_S: Final = 2.0
"""Ours: a node that has not answered after it is queried again once all others have been."""
LOOK_S: Final = 0.2
"""Ours: how often the job's lead is queried whether the job is over."""
NAMED: Final = 5


class Administration:
    """``WrongUseError`` if the key is none of an administrator in the ``allowed`` of this directory."""

    def __init__(self, directory: Path, key: Path, say: Callable[[str], None]) -> None:
        self._nodes, self._allowed, self._say = read_nodes(directory), Allowed(directory), say
        self._keys = read_pair(key)
        self._allowed.refresh()
        entry = self._allowed.find(self._keys.public)
        if entry is None or entry.role != "admin":
            raise WrongUseError(f"{key}: {self._allowed.path} has it not as the key of an administrator (role admin)")
        self._said = ""

    def end(self, job: int) -> int:
        """0 once the job is over, 1 if no node has it."""
        pending: Sequence[int] = range(len(self._nodes.nodes))
        while pending:
            silent: list[int] = []
            for first in range(0, len(pending), AT_ONCE):
                some = pending[first : first + AT_ONCE]
                answers = self._query(job, some)
                lead = next((node for node, one in answers.items() if not isinstance(one, m.Refused)), None)
                if lead is not None:
                    return self._wait(job, lead, answers[lead])
                silent += [node for node in some if node not in answers]
            if silent:
                self._note(f"job {job}: no answer of {self._names(silent)}, which may have it; the others do not")
            pending = silent
        self._say(f"job {job}: no node has it: it is over, or has no start yet, and can be cancelled when it has one")
        return 1

    def _wait(self, job: int, lead: int, answer: m.Message | None) -> int:
        name = self._names([lead])
        if isinstance(answer, m.Started):
            self._say(f"job {job}: {name} ends it")
        while answer is None or isinstance(answer, m.Started):
            time.sleep(LOOK_S)
            answer = self._query(job, [lead]).get(lead)
            if answer is None:
                self._note(f"job {job}: {name} does not answer: the job ends there as soon as it does")
        self._say(f"job {job}: it is over")
        return 0

    def _query(self, job: int, nodes: Sequence[int]) -> dict[int, m.Message]:
        """What each of these nodes answers to the cancellation, if it does in time."""
        context, poller, frame = zmq.Context(), zmq.Poller(), frame_of(m.Cancel(job, 1))
        node_of: dict[zmq.Socket[bytes], int] = {}
        answers: dict[int, m.Message] = {}
        try:
            for node in nodes:
                if public := key_of(self._allowed, self._nodes.nodes[node].name):
                    made = dealer(context, self._nodes.nodes[node].url, self._keys, public)
                    node_of[made] = node
                    poller.register(made, zmq.POLLIN)
                    made.send(frame)
                else:
                    self._note(f"{self._names([node])}: no key of it is allowed in {self._allowed.path}")
            end_s = time.monotonic() + ANSWER_S
            while len(answers) < len(node_of) and (left_s := end_s - time.monotonic()) > 0:
                for ready, _ in poller.poll(round(1000 * left_s) + 1):
                    node = node_of[ready]
                    try:
                        message, _ = read_frame(ready.recv(zmq.NOBLOCK))
                    except WireError as error:
                        self._note(f"{self._names([node])}: dropped: {error}")
                        continue
                    if message.job == job and isinstance(message, m.Refused | m.Started | m.Ended):
                        answers[node] = message
        finally:
            for one in node_of:
                one.close(0)
            context.term()
        return answers

    def _names(self, nodes: Sequence[int]) -> str:
        return first_of([self._nodes.nodes[node].name for node in nodes], NAMED)

    def _note(self, line: str) -> None:
        """Not the same line again and again."""
        if line != self._said:
            self._said = line
            self._say(line)
