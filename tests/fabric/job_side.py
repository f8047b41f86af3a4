"""The jobs' half of a cluster agent with made-up nodes and made-up time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cluster_agent.budget.sharers.api import Models
from cluster_agent.fabric.people import Caller
from cluster_agent.serve.config import JobSettings
from cluster_agent.serve.job_requests import JobRequests
from cluster_agent.serve.job_service import JobService
from cluster_agent.serve.people_protocol import Submit
from cluster_agent.store.database import Database
from cluster_agent.store.job_store import JobStore
from foundation.wire.job_messages import (
    JobForget,
    JobPart,
    JobQuery,
    JobStart,
    Message,
    NodeJobs,
)
from tests.fabric.links import report

ROOT_USER, EVE = Caller(0, "root", "admin"), Caller(1000, "eve", "viewer")


class Side:
    """A side with made-up nodes: what it sends is in ``sent``; ``speak`` is a second in which they report."""

    def __init__(
        self, tmp_path: Path, nodes: int = 2, models: Models | None = None, settings: JobSettings | None = None
    ) -> None:
        self.now_s = 1_000_000.0
        self.sent: list[tuple[str, Message | JobQuery]] = []
        self.said: list[str] = []
        self.older: set[str] = set()
        self.silent: set[str] = set()
        self.units = 0
        self.parts: dict[str, list[JobPart]] = {f"n{n}": [] for n in range(nodes)}
        self.database = Database(tmp_path / "a.db")
        self.store = JobStore(self.database)
        self.side = JobService(
            settings or JobSettings(), self.store, self.parts, self._send, lambda name: name not in self.older,
            self.said.append, lambda: self.now_s, models=models or {},
        )  # fmt: skip
        self.ask = JobRequests(self.side).handlers

    def _send(self, name: str, message: Message | JobQuery) -> bool:
        self.sent.append((name, message))
        if isinstance(message, JobStart):
            self.parts[name].append(JobPart(message.job, message.attempt, "running", started_s=self.now_s))
        elif isinstance(message, JobForget):
            self.parts[name].clear()
        return True

    def speak(self, **given: Any) -> None:
        self.now_s += 1.0
        reports = [report(name, round(self.now_s * 1e9), **given) for name in self.parts]
        news = [
            NodeJobs(name, "boot", list(parts))
            for name, parts in self.parts.items()
            if name not in self.silent and name not in self.older
        ]
        self.side.hear(news, reports, lambda one: ("fspc: static", 0.25))
        self.side.turn()

    def submit(self, caller: Caller = ROOT_USER, **given: Any) -> int:
        return int(self.ask[Submit](caller, Submit(["true"], 600, "/", **given)))
