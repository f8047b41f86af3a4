"""Builds ``cluster_agent._native``: reading job logs, the scheduler, the replay loop and the table of its results.

The declarations are read from the headers themselves, so that C and Python cannot differ.
"""

from __future__ import annotations

import os
import pathlib
import re

from cffi import FFI

ROOT = pathlib.Path(__file__).resolve().parent.parent
CSRC = pathlib.Path("cluster_agent/csrc")
HEADERS = [
    *(
        "logs/swf.h",
        "resources/site_limits.h",
        "orders/priority.h",
        "orders/score.h",
        "placement.h",
        "power.h",
        "resources/caps.h",
        "resources/node_model.h",
        "resources/list_plan.h",
        "resources/serial_plan.h",
        "scheduler.h",
        "steps.h",
    ),
    *("meter.h", "answering.h", "replay/replay.h", "replay/portfolio.h", "logs/jobs_csv.h"),
    "dispatch/fitting_index.h",
]
INSIDE = [
    *("memory.h", "search.h", "events.h", "profile.h", "learner.h", "kinds.h", "idle_nodes.h"),
    *("scheduler_inside.h", "power_inside.h", "replay/replay_inside.h"),
    *("resources/node_room.h", "resources/node_inside.h", "resources/list_plan_inside.h"),
    "resources/span_line.h",
    "resources/site_limits_inside.h",
    "logs/text.h",
]
SOURCES = [
    *("memory.c", "logs/swf.c", "placement.c", "profile.c", "learner.c", "estimates.c", "scheduler.c", "composing.c"),
    "best_effort.c",
    *(
        "orders/priority.c",
        "orders/given.c",
        "orders/ranking.c",
        "orders/score.c",
        "resources/site_limits.c",
        "limited_pass.c",
        "reserved_pass.c",
        "pass.c",
        "resources/processors.c",
        "resources/partitions.c",
        "resources/caps.c",
        "resources/node_room.c",
        "resources/node_sums.c",
        "resources/choices.c",
        "resources/sharing.c",
        "resources/nodes.c",
        "resources/list_plan.c",
        "resources/span_line.c",
        "resources/serial_plan.c",
    ),
    *("kinds.c", "idle_nodes.c", "power.c", "power_pass.c", "power_ahead.c", "budget.c"),
    *("meter.c", "events.c", "answering.c", "steps.c"),
    *("replay/replay_foreseen.c", "replay/replay_setup.c", "replay/replay_power.c", "replay/replay_failures.c"),
    "replay/replay.c",
    *("replay/replay_steps.c", "replay/portfolio.c", "logs/jobs_csv.c", "dispatch/fitting_index.c"),
]


def declarations(header: str) -> str:
    """The C header without what cffi cannot read: comments, guards and includes; numeric #defines stay."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    numeric = re.compile(r"#define \w+ \(?-?\d+\)?\s*$")
    kept = [line.rstrip() for line in text.splitlines() if not line.startswith("#") or numeric.match(line)]
    return "\n".join(re.sub(r"(#define \w+) \((-?\d+)\)", r"\1 \2", line) for line in kept)


ffibuilder = FFI()
ffibuilder.cdef("\n".join(declarations((ROOT / CSRC / header).read_text()) for header in HEADERS))
ffibuilder.set_source(
    "cluster_agent._native",
    "\n".join(f'#include "{header}"' for header in HEADERS),
    sources=[str(CSRC / source) for source in SOURCES],
    depends=[str(CSRC / header) for header in [*HEADERS, *INSIDE]],
    include_dirs=[str(CSRC)],
    extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-Wall", "-Wextra"],
)

if __name__ == "__main__":
    os.chdir(ROOT)
    ffibuilder.compile(verbose=True)
