"""A cluster agent in a folder whose disk is full at times; ``test_full_disk`` runs it in a file system of its own.

    python -m tests.fabric.full_disk_head FOLDER SECONDS COMMAND ...    life one, killed at its end
    python -m tests.fabric.full_disk_head FOLDER                        what the next one finds

Two nodes report each second of an injected clock, from ten seconds before the disk is full. Then each command is given
and answered, then the seconds pass.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from unittest import mock

from cluster_agent.errors import ClusterError
from cluster_agent.fabric.people import Caller
from cluster_agent.serve import server as served
from cluster_agent.serve.config import BudgetSettings, JobSettings, NodeSettings, Settings
from cluster_agent.serve.people_protocol import Drain, ListBudgetChanges, ListJobs, SetBudget, ShowBudget, Submit
from nodectl.member.lease import NodeLease
from tests.fabric.links import DECLARED, S
from tests.fuzzing.lies import Ends

ROOT = Caller(0, "root", "admin")


class Head:
    """The cluster agent, and two nodes with their leases."""

    def __init__(self, folder: Path, now_s: float) -> None:
        self.now_s, self.said = now_s, list[str]()
        (folder / "allowed").write_text("".join(f"node n{n} {str(n) * 40}\n" for n in range(2)))
        feed = folder / "feed"
        budget = BudgetSettings(w=700.0, feed=str(feed) if feed.exists() else "")
        settings = Settings(
            listen="tcp://127.0.0.1:1", insecure=True, keys=str(folder), store=str(folder / "store" / "cluster.db"),
            socket=str(folder / "s"), mode="cap", budget=budget, jobs=JobSettings(),
            nodes=NodeSettings(tdp_w=500.0, failing_together=0),
        )  # fmt: skip
        with (
            mock.patch.object(served, "Router", lambda *given, **named: Ends()),
            mock.patch.object(served, "AdminSocket", lambda *given, **named: Ends()),
            mock.patch.object(served, "boot_id", lambda: "head-boot"),
        ):
            self.server = served.Server(settings, self.said.append, lambda: self.now_s, lambda: 1e9 + self.now_s)
        self.leases = [NodeLease(f"n{n}", "boot-1", DECLARED, 500_000, round(now_s * S)) for n in range(2)]
        self.caps_w: list[list[float]] = []

    def second(self) -> None:
        """Nodes report, take what is granted, and keep their leases."""
        self.now_s += 1.0
        now_ns = round(self.now_s * S)
        grants = self.server.partition.hear(self.now_s, [lease.report(now_ns, 150_000) for lease in self.leases])
        for grant in grants:
            self.leases[int(grant.node[1])].take(now_ns, grant)
        self.server._turn(self.now_s, [])
        for lease in self.leases:
            lease.lapse(now_ns)
            lease.confirm("seen")
        self.caps_w.append([lease.cap_mw / 1000 for lease in self.leases])

    def give(self, words: str) -> str:
        """The answer to a command, or the error."""
        kind, _, rest = words.partition(" ")
        requests = {
            "budget": lambda: SetBudget(float(rest)), "drain": lambda: Drain(rest, "why"),
            "submit": lambda: Submit(["true", "x" * 3000], 60, "/"),
        }  # fmt: skip
        try:
            request = requests[kind]()
            return str(self.server.handlers[type(request)](ROOT, request))
        except ClusterError as error:
            return f"refused: {error}"

    def state(self) -> dict[str, object]:
        """What is in force."""
        handlers = self.server.handlers
        changes = handlers[ListBudgetChanges](ROOT, ListBudgetChanges())
        assert self.server.jobs is not None
        return {
            "budget": handlers[ShowBudget](ROOT, ShowBudget()).budget_w, "changes": [one.what for one in changes],
            "jobs": [row.job for row in handlers[ListJobs](ROOT, ListJobs())],
            "drained": self.server.jobs.store.drained(),
        }  # fmt: skip


def main(folder: Path, seconds: int, commands: list[str]) -> None:
    """One life."""
    if not commands:
        head = Head(folder, 2000.0)
        head.second()
        print(json.dumps(head.state()))
        return
    head = Head(folder, 1000.0)
    for _ in range(30):
        head.second()
    with open(folder / "store" / "fill", "wb") as fill:
        while True:
            try:
                os.write(fill.fileno(), bytes(4096))
            except OSError:
                break
    n_said, head.caps_w = len(head.said), []
    answers = []
    for command in commands:
        if command.startswith("feed "):
            (folder / "feed.new").write_text(command.removeprefix("feed ") + "\n")
            os.replace(folder / "feed.new", folder / "feed")
            answers.append("")
        else:
            answers.append(head.give(command))
        head.second()
    for _ in range(seconds):
        head.second()
    line = head.server.partition.ledger.budget
    print(
        json.dumps({
            "answers": answers, "said": head.said[n_said:], "caps_w": head.caps_w, "budget": line.budget_mw / 1000,
            "alarms": head.server.partition.alarms.texts,
        })
    )  # fmt: skip
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 0, sys.argv[3:])
