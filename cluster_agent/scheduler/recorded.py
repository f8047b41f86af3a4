"""What another policy did before a replay begins: the start of each job, by the record (``workloads.state_file``).

Until ``until_s`` jobs are submitted, started and end as recorded, through the same events as in any replay, and passes
start nobody. So no phase needs a state of its own in the file: estimates, corrections, learners and fair-share come out
of the events. At ``until_s`` a pass is due, and the policy decides from there on.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class StartsError(RuntimeError):
    """Starts that cannot be."""


class Start(NamedTuple):
    """``recorded_t`` in ``csrc/replay/replay.h``. ``level``: the frequency, 0 the highest."""

    start_s: int
    job: int
    level: int = 0


class Recorded(msgspec.Struct, frozen=True):
    """``starts`` in the order of time, all before ``until_s``."""

    starts: list[Start]
    until_s: int
