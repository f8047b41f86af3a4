"""The command ``clusterctl``: the jobs and the power of a partition.

Commands are imported when they are called. Errors end as one line on stderr. Exit status: 0 success, 1 the run failed
or a check failed, 2 wrong use.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click

from foundation import __version__
from foundation.shell.command_line import LazyCommands, call

COMMANDS: Final = {
    "replay": ("cluster_agent.commands.replays.replay", "replay", "What a policy would have done with a job log."),
    "campaign": (
        "cluster_agent.commands.replays.campaign",
        "campaign",
        "Replay every combination of policies, traces, caps.",
    ),
    "report": ("cluster_agent.commands.replays.report", "report", "Replays side by side: tables and plots."),
    "riplay": ("lab.commands.riplay", "riplay", "Replay hours of a job log on a real Slurm."),
    "plan": ("cluster_agent.commands.replays.show_plan", "plan", "The plan in force at an instant of a replay."),
    "profit": ("cluster_agent.commands.replays.profit", "profit", "What plans earn next to rules, and a profile."),
    "nodes-ahead": (
        "cluster_agent.commands.replays.nodes_ahead",
        "nodes_ahead",
        "Which nodes to keep on, from the weeks before.",
    ),
    "dardis": ("cluster_agent.commands.replays.dardis", "dardis", "Dispatch a job log without a centre."),
    "generate": ("cluster_agent.commands.replays.generate", "generate", "Draw a workload that a paper describes."),
    "policies": (
        "cluster_agent.commands.replays.policies",
        "policies",
        "The scheduling policies and the sharers of watts, their parameters and papers.",
    ),
    "check-log": ("cluster_agent.commands.replays.check_log", "check_log", "Check that an event log replays the same."),
    "submit": ("cluster_agent.commands.submit", "submit", "Queue a job."),
    "jobs": ("cluster_agent.commands.jobs", "jobs", "The jobs, or the details of one; export."),
    "cancel": ("cluster_agent.commands.jobs", "cancel", "End jobs."),
    "reserve": ("cluster_agent.commands.reserve", "reserve", "Keep nodes free for some users; what is reserved."),
    "requeue": ("cluster_agent.commands.jobs", "requeue", "Run jobs again."),
    "history": ("cluster_agent.commands.learning.history", "history", "What each job did, in watts and counters."),
    "predict": ("cluster_agent.commands.learning.predict", "predict", "What a job, or the partition, will draw."),
    "pairs": ("cluster_agent.commands.learning.pairs", "pairs", "Which jobs share a GPU, from measured pairs."),
    "budget": ("cluster_agent.commands.budget", "budget", "Show and set the partition's budget."),
    "nodes": ("cluster_agent.commands.nodes", "nodes", "Every node, its cap, its job and its power."),
    "why": ("cluster_agent.commands.nodes", "why", "Why a node has its cap."),
    "top": ("cluster_agent.commands.top", "top", "Budget, nodes and jobs, as they change."),
    "drain": ("cluster_agent.commands.jobs", "drain", "No more jobs for a node."),
    "resume": ("cluster_agent.commands.jobs", "resume", "A node may get jobs again."),
    "power": ("cluster_agent.commands.jobs", "power", "Switch a node off or on."),
    "calibrate": ("cluster_agent.commands.calibrate_nodes", "calibrate", "Measure nodes, within the budget."),
    "calibration": ("calibration.commands.compare_tables", "calibration", "What tables of several nodes say together."),
    "hazard": ("cluster_agent.commands.learning.hazard", "hazard", "Thermal hazard of the room, from its inlets."),
    "serve": ("cluster_agent.commands.serve", "serve", "Keep a partition's power budget and run its jobs: the agent."),
    "config": ("cluster_agent.commands.config", "config", "Check the settings."),
    "keys": ("cluster_agent.commands.keys", "keys", "Who may connect to the cluster agent: make, allow, revoke keys."),
    "store": ("cluster_agent.commands.store", "store", "Check, repair and back up the cluster agent's store."),
    "state": ("cluster_agent.commands.machine_state", "state", "The jobs as a file from which a replay starts."),
    "models": (
        "cluster_agent.commands.learning.model_service",
        "models",
        "Models of the power of jobs: train, run, promote, roll back.",
    ),
    "elastic": ("cluster_agent.commands.elastic", "elastic", "Pods and Dask workers make room for jobs."),
    "slurm": (
        "cluster_agent.commands.beside_slurm.slurm_site",
        "slurm",
        "Work next to a Slurm: check, install, remove, follow.",
    ),
    "oar": (
        "cluster_agent.commands.beside_slurm.oar_site",
        "oar",
        "Next to an OAR: check, install, remove, follow.",
    ),
    "notify": ("cluster_agent.commands.job_notices", "notify", "What another job manager starts and ends."),
    "energy": ("cluster_agent.commands.beside_slurm.slurm_energy", "energy", "Joules of the jobs of another manager."),
    "metrics": ("cluster_agent.commands.metrics", "metrics", "The partition for Prometheus."),
    "mqtt": ("cluster_agent.commands.metrics", "mqtt", "The partition for an MQTT broker."),
    "page": ("cluster_agent.page.show_page", "page", "The partition as a page for people, in a browser."),
    "open": ("cluster_agent.page.show_page", "open_page", "The same page of one's own, opened in a browser."),
    "demo": ("lab.commands.cluster_demo", "demo", "Sixteen emulated nodes under a budget, shared three ways."),
}

SECTIONS: Final = {
    "replay": "Replay of job logs",
    "submit": "Jobs of a partition",
    "budget": "Watts and nodes",
    "serve": "The cluster agent",
    "slurm": "Next to others",
    "demo": "Without hardware",
}
"""Headings of the list, by the command that each is above."""


@click.group(
    cls=LazyCommands, table=COMMANDS, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="clusterctl", message="%(prog)s %(version)s", help="Show it.")
def clusterctl() -> None:
    """Keeps a partition's power budget and runs its jobs; replays job logs to compare schedulers."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; every expected error becomes one line on stderr."""
    return call(clusterctl, "clusterctl", arguments)


if __name__ == "__main__":
    sys.exit(main())
