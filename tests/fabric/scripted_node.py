"""A node agent as a process of its own: the node's real lease and link, and for hardware a file with the cap.

``python scripted_node.py NAME URL KEYS HARDWARE BOOT-ID [bound]``. What is in HARDWARE is what the node could draw. It
runs jobs, next to HARDWARE, with the node's real parts. With ``bound`` it also reports the cap that should be in force.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from foundation.wire.keys import read_pair, read_public
from foundation.wire.power_messages import Declaration
from nodectl.jobs.job_runner import JobThread
from nodectl.jobs.processes import JobRunner
from nodectl.member.cluster_link import ClusterLink
from nodectl.member.job_exchange import JobExchange
from nodectl.member.lease import NodeLease

REPORT_S, SETTLE_S = 0.3, 0.03
WAIT_MS = 25
"""For a message, which ends the wait; what falls due meanwhile has the 200 ms of ``settle_ms``."""
DECLARED = Declaration(
    tdp_mw=500_000, mop_mw=150_000, safe_mw=200_000, boot_mw=0, lease_class="os", settle_ms=200, watchdog_ms=0
)


def put(hardware: Path, cap_mw: int, due_ns: int = 0) -> None:
    """Write a cap, and in the history when it was begun and when it was done. ``due_ns``: by when it had to be, if it
    had to be by itself, since the lease was over."""
    note(hardware, "begun", cap_mw, due_ns)
    anew = hardware.with_suffix(".new")
    anew.write_text(str(cap_mw))
    os.replace(anew, hardware)
    note(hardware, "done", cap_mw, due_ns)


def note(hardware: Path, what: str, cap_mw: int, due_ns: int = 0) -> None:
    """A line of the history: ns of CLOCK_BOOTTIME, what, mW, and by when."""
    with open(hardware.with_suffix(".history"), "a") as history:
        history.write(f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {what} {cap_mw} {due_ns}\n")


def main(name: str, url: str, keys: str, hardware: str, boot_id: str, bound: str = "") -> None:
    leaving = []
    signal.signal(signal.SIGTERM, lambda *_: leaving.append(True))
    limit = Path(hardware)
    link = ClusterLink(url, read_pair(Path(keys) / f"{name}.key"), read_public(f"{keys}/cluster.key"))
    lease = NodeLease(name, boot_id, DECLARED, int(limit.read_text()), time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    jobs = JobExchange(link, JobThread(JobRunner(limit.with_suffix(".jobs"), name), name, boot_id))
    is_capped = False  # who has never been granted anything is not capped, and has nothing to lose
    report_s = settled_s = 0.0
    while True:
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        now_s = now_ns / 1e9
        has_new = has_lapsed = is_capped and lease.lapse(now_ns)
        due_ns = lease.lease_end_ns + DECLARED.settle_ms * 1_000_000
        for grant in link.receive():
            if lease.take(now_ns, grant):
                continue
            if grant.is_leave:
                put(limit, DECLARED.tdp_mw)
                return
            has_new = is_capped = True
        if has_new:
            put(limit, lease.cap_mw, due_ns if has_lapsed else 0)
            settled_s = now_s + SETTLE_S
        if settled_s and now_s >= settled_s:
            lease.confirm("seen")
            settled_s = report_s = 0.0
        if now_s >= report_s:
            report = lease.report(now_ns, min(400_000, lease.cap_mw), bool(leaving))
            link.send(msgspec.structs.replace(report, asked_mw=lease.cap_mw if bound and is_capped else -1))
            report_s = now_s + REPORT_S
        jobs.exchange(now_ns)
        link.wait(WAIT_MS)


if __name__ == "__main__":
    main(*sys.argv[1:])
