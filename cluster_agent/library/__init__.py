"""The library: replays, policies and their results in a Python program or a notebook (docs/library.md).

``clusterctl replay`` is options, this and files. Only the names of ``__all__`` are for others, and these stay as they
are within a version's first two numbers; what is to go warns (``DeprecationWarning``) for one such version. It
imports nothing of the node agent.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from foundation.collector import paused

if TYPE_CHECKING:
    from cluster_agent.cap_steps import Cap
    from cluster_agent.cluster import Machine, load_machine
    from cluster_agent.errors import ClusterError, WrongUseError
    from cluster_agent.library.comparing import compare
    from cluster_agent.library.given import World
    from cluster_agent.library.given_columns import ColumnError
    from cluster_agent.library.own_policies import policy
    from cluster_agent.library.replaying import replay
    from cluster_agent.library.results import Result
    from cluster_agent.scheduler.job_columns import Busy, Jobs, Past, Submitted
    from cluster_agent.scheduler.orders.score_formula import score
    from cluster_agent.scheduler.policies.registry import Choice as Policy
    from cluster_agent.scheduler.policy_phases import Composition, Queue
    from cluster_agent.scheduler.power_cap import PowerCap
    from cluster_agent.scheduler.power_phases import Power, Reaction, Situation
    from cluster_agent.workloads.swf import TraceError

__all__ = [
    "Busy", "Cap", "ClusterError", "ColumnError", "Composition", "Jobs", "Machine", "Past", "Policy", "Power",
    "PowerCap", "Queue", "Reaction", "Result", "Situation", "Submitted", "TraceError", "World", "WrongUseError",
    "compare", "load_machine", "policy", "replay", "score",
]  # fmt: skip

_MODULES: Final = {
    "Busy": "scheduler.job_columns", "Past": "scheduler.job_columns", "Submitted": "scheduler.job_columns",
    "Cap": "cap_steps", "ClusterError": "errors", "ColumnError": "library.given_columns",
    "Composition": "scheduler.policy_phases", "Jobs": "scheduler.job_columns", "Machine": "cluster",
    "Policy": "scheduler.policies.registry", "Power": "scheduler.power_phases", "PowerCap": "scheduler.power_cap",
    "Queue": "scheduler.policy_phases", "Reaction": "scheduler.power_phases", "Result": "library.results",
    "Situation": "scheduler.power_phases", "TraceError": "workloads.swf", "World": "library.given",
    "WrongUseError": "errors", "compare": "library.comparing", "load_machine": "cluster",
    "policy": "library.own_policies", "replay": "library.replaying", "score": "scheduler.orders.score_formula",
}  # fmt: skip
"""Where each name is defined; it is imported when it is first used."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with paused():
        module = importlib.import_module(f"cluster_agent.{_MODULES[name]}")
    globals()[name] = found = getattr(module, {"Policy": "Choice"}.get(name, name))
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
