"""Agent, writer and restore are killed or stopped at random moments while knobs are moved: is every knob as it was?

No systemd: `nodectl run -- sleep` on a small served node, as a user of a batch job would run it. Each kill draws its
moment, the clock that the run sets, and its target:

    agent killed, stopped    the writer process must put the knobs back, within the lease and a second
    writer killed, stopped   the agent must start another one, which repairs from the save, and go on
    both killed              nobody is left: `nodectl restore`, or the next run, puts the knobs back
    restore killed           as both, and `nodectl restore` is killed as well, before another one
    start, stop killed       the agent dies before its first tick, or while it ends
    agent killed, granted    under a cluster's grant: knobs that keep the cap end at the safe value, all others as found

*equal* compares all clock and package limits of the node, byte for byte, with what was found before the campaign.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from glob import glob
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from benchmarks.experiment import save
from nodectl.writer_process.writer_protocol import LEASE_S
from tests.waiting import within

MOST_S: Final = LEASE_S + 1.0

PATIENCE_S: Final = 600.0
"""Starting a process takes a minute on a machine that is busy enough. What takes longer than this is taken for hung."""

KNOBS: Final = (
    "/sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq",
    "/sys/class/powercap/intel-rapl:*/constraint_*_power_limit_uw",
)
CLOCKS_KHZ: Final = (1_200_000, 1_500_000, 1_800_000, 2_100_000, 2_400_000)
NODECTL: Final = (sys.executable, "-m", "nodectl.cli")

GRANTED: Final = """
import sys, time
from nodectl.writer_process.remote_writer import RemoteWriter
from nodectl.writer_process.writer_link import start_writer
names = sys.argv[2:]
writer = RemoteWriter(lambda: start_writer(sys.argv[1]))
writer.start()
writer.limit_restores({names[0]: 1_200_000, names[1]: 2_000_000})
while True:
    writer.apply(dict.fromkeys(names, 1_800_000))
    time.sleep(0.1)
"""
"""An agent in small: the first two of its knobs keep a cap. The safe value of the first is below what is set, that of
the second above: a restore may lower the one and must not raise the other."""

GRANTED_ENDS_AT: Final = ("1200000\n", "1800000\n")


class Campaign:
    """On the node that this process sees."""

    def __init__(self, state_dir: str, seed: int) -> None:
        self.state_dir = state_dir
        self.dice = random.Random(seed)
        self.found = knobs()
        self.log = Path(state_dir) / "log"
        self._children: list[psutil.Process] = []

    def kill_one(self, target: str) -> dict[str, Any]:
        """Start a run, wait until a knob is moved, do it, and look whether all is back."""
        done = TARGETS[target](self)
        equal = knobs() == self.found
        for child in self._children:
            if child.is_running():
                child.kill()
        self._children.clear()
        left = os.path.exists(f"{self.state_dir}/captured.jsonl")
        if not equal or left:
            self.restore("--leave-cluster")
        return {"target": target, "equal": equal and not left, **done}

    def run(self) -> psutil.Process:
        """A run around a command."""
        policy = f"fixed:clock_khz={self.dice.choice(CLOCKS_KHZ)}"
        return self.start([*self.command(policy), "--", "sleep", "600"])

    def command(self, policy: str) -> list[str]:
        """`nodectl run` with this CPU policy."""
        return [*NODECTL, "run", "--mode", "optimize", "--cpu-policy", policy, "--state-dir", self.state_dir]

    def start(self, command: list[str]) -> psutil.Process:
        """Start an agent; whatever it starts ends with this kill."""
        with open(self.log, "w") as log:
            return psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    def wait_moved(self, agent: psutil.Process) -> psutil.Process:
        """Its writer process, once a knob is moved; a random time later."""
        moved = within(PATIENCE_S, lambda: knobs() != self.found)
        assert moved, f"no knob was moved: {self.log.read_text()}"
        time.sleep(self.dice.uniform(0.0, 0.5))
        return self.writer_of(agent)

    def writer_of(self, agent: psutil.Process) -> psutil.Process:
        """The process that writes for this agent."""
        below = agent.children(recursive=True)
        self._children += [child for child in below if child not in self._children]
        return next(child for child in below if "nodectl.cli" in child.cmdline() and "run" not in child.cmdline())

    def back_after(self) -> float:
        """Seconds from now until every knob is as it was."""
        began_s = time.monotonic()
        within(PATIENCE_S, lambda: knobs() == self.found)
        return time.monotonic() - began_s

    def restore(self, *options: str) -> None:
        """`nodectl restore`, as often as it says that a knob was busy."""
        command = [*NODECTL, "restore", "--state-dir", self.state_dir, *options]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PATIENCE_S, check=False)

    def end(self, agent: psutil.Process) -> None:
        """An orderly stop."""
        agent.send_signal(signal.SIGTERM)
        agent.wait(PATIENCE_S)


def knobs() -> dict[str, str]:
    """All limits of this node, as text."""
    return {path: Path(path).read_text() for pattern in KNOBS for path in sorted(glob(pattern))}


def _kill(campaign: Campaign, agent: psutil.Process) -> dict[str, Any]:
    """SIGKILL of the agent alone, and how long its knobs take to be back."""
    agent.kill()
    took_s = campaign.back_after()
    agent.wait()
    _wait_free(campaign)
    return {"back_s": took_s}


def _agent_killed(campaign: Campaign) -> dict[str, Any]:
    agent = campaign.run()
    campaign.wait_moved(agent)
    return _kill(campaign, agent)


def _agent_stopped(campaign: Campaign) -> dict[str, Any]:
    agent = campaign.run()
    campaign.wait_moved(agent)
    agent.suspend()
    took_s = campaign.back_after()
    was_back = knobs() == campaign.found
    agent.resume()
    moved_again = within(PATIENCE_S, lambda: knobs() != campaign.found)
    campaign.end(agent)
    return {"back_s": took_s, "strange": not (was_back and moved_again)}


def _writer_gone(campaign: Campaign, act: Callable[[psutil.Process], None]) -> dict[str, Any]:
    agent = campaign.run()
    writer = campaign.wait_moved(agent)
    began_s = time.monotonic()
    act(writer)

    def has_started_another() -> bool:
        return "started again" in campaign.log.read_text()

    went_on = within(PATIENCE_S, has_started_another) and within(PATIENCE_S, lambda: knobs() != campaign.found)
    again_s = time.monotonic() - began_s
    campaign.writer_of(agent)
    campaign.end(agent)
    return {"again_s": again_s, "strange": not went_on}


def _both_killed(campaign: Campaign) -> dict[str, Any]:
    agent = campaign.run()
    kill_both(campaign, agent, campaign.wait_moved(agent))
    if campaign.dice.random() < 0.5:
        campaign.restore()
    else:
        campaign.start([*campaign.command("fixed:clock_khz=1500000"), "--duration", "200ms"]).wait(PATIENCE_S)
    return {}


def _restore_killed(campaign: Campaign) -> dict[str, Any]:
    agent = campaign.run()
    kill_both(campaign, agent, campaign.wait_moved(agent))
    killed = campaign.start([*NODECTL, "restore", "--state-dir", campaign.state_dir])
    time.sleep(campaign.dice.uniform(0.2, 1.0))
    killed.kill()
    killed.wait()
    campaign.restore()
    return {}


def _start_killed(campaign: Campaign) -> dict[str, Any]:
    agent = campaign.run()
    time.sleep(campaign.dice.uniform(0.2, 2.0))
    campaign._children += agent.children(recursive=True)
    return _kill(campaign, agent)


def _stop_killed(campaign: Campaign) -> dict[str, Any]:
    agent = campaign.run()
    campaign.wait_moved(agent)
    agent.send_signal(signal.SIGTERM)
    time.sleep(campaign.dice.uniform(0.0, 0.1))
    return _kill(campaign, agent)


def _granted_killed(campaign: Campaign) -> dict[str, Any]:
    clocks = [path for path in campaign.found if path.endswith("scaling_max_freq")]
    names = [f"cpu/{Path(path).parent.name}/max_khz" for path in clocks]
    agent = campaign.start([sys.executable, "-c", GRANTED, campaign.state_dir, *names])
    campaign.wait_moved(agent)
    agent.kill()
    began_s = time.monotonic()
    expected = dict(zip(clocks, GRANTED_ENDS_AT, strict=False))
    right = within(PATIENCE_S, lambda: knobs() == campaign.found | expected)
    took_s = time.monotonic() - began_s
    agent.wait()
    _wait_free(campaign)
    campaign.restore("--leave-cluster")
    return {"back_s": took_s, "strange": not right}


def kill_both(campaign: Campaign, agent: psutil.Process, writer: psutil.Process) -> None:
    """Whichever dies first has no time to notice the other's death, or some."""
    for process in campaign.dice.sample((agent, writer), 2):
        process.kill()
    agent.wait()
    _wait_free(campaign)


def _wait_free(campaign: Campaign) -> None:
    """Until no writer of this kill runs any more."""
    within(PATIENCE_S, lambda: not any(_is_writer(process) for process in psutil.process_iter()))


def _is_writer(process: psutil.Process) -> bool:
    return "writer" in _words(process) and "--descriptor" in _words(process)


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline()) if process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.NoSuchProcess:
        return []


TARGETS: Final[dict[str, Callable[[Campaign], dict[str, Any]]]] = {
    "agent killed": _agent_killed,
    "agent stopped": _agent_stopped,
    "writer killed": lambda campaign: _writer_gone(campaign, psutil.Process.kill),
    "writer stopped": lambda campaign: _writer_gone(campaign, psutil.Process.suspend),
    "both killed": _both_killed,
    "restore killed": _restore_killed,
    "start killed": _start_killed,
    "stop killed": _stop_killed,
    "agent killed, granted": _granted_killed,
}


def inside(kills: int, seed: int, state_dir: str) -> int:
    """On the served node: one JSON line per kill."""
    campaign = Campaign(state_dir, seed)
    for number in range(kills):
        target = list(TARGETS)[number % len(TARGETS)]
        print(json.dumps(campaign.kill_one(target)), flush=True)
    return 0


def run(kills: int, machine: str = "curie", seed: int = 1) -> list[dict[str, Any]]:
    """The campaign on a served node of this machine, as rows."""
    with tempfile.TemporaryDirectory() as directory:
        command = [
            *NODECTL, "twin", "run", "--machine", machine, "--workload", "hpl", "--",
            sys.executable, "-m", "benchmarks.kill_campaign", "--inside", directory,
            "--kills", str(kills), "--seed", str(seed),
        ]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(rows) != kills:
        print(f"only {len(rows)} of {kills} kills were done (exit status {done.returncode})", file=sys.stderr)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By target: how many, how many were not as they should be, and times."""
    found: dict[str, dict[str, float]] = {}
    for target in dict.fromkeys(row["target"] for row in rows):
        of = [row for row in rows if row["target"] == target]
        figures: dict[str, float] = {
            "kills": len(of),
            "not_equal": sum(not row["equal"] for row in of),
            "strange": sum(bool(row.get("strange")) for row in of),
        }
        for what in ("back_s", "again_s"):
            times = [row[what] for row in of if what in row]
            if times:
                p50, p99 = np.percentile(times, [50, 99])
                figures |= {f"{what} p50": float(p50), f"{what} p99": float(p99), f"{what} max": max(times)}
        found[target] = figures
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kill_campaign", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two kills of each kind")
    parser.add_argument("--kills", type=int, default=900, help="how many (default: 900)")
    parser.add_argument("--machine", default="curie", help="of the served node (default: curie)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        return inside(options.kills, options.seed, options.inside)
    kills = 2 * len(TARGETS) if options.quick else options.kills
    rows = run(kills, options.machine, options.seed)
    figures = table(rows)
    columns = ("kills", "not_equal", "strange", "back_s p50", "back_s p99", "back_s max", "again_s p50", "again_s max")
    print(f"{'target':24}" + "".join(f"{column:>13}" for column in columns))
    for target, row in figures.items():
        cells = (f"{row[column]:13.3g}" if column in row else f"{'':13}" for column in columns)
        print(f"{target:24}" + "".join(cells))
    late = sorted(row["back_s"] for row in rows if "back_s" in row)
    p99_s = float(np.percentile(late, 99))
    load = psutil.getloadavg()[0]
    print(f"back p99 {p99_s:.3f} s; lease {LEASE_S:g} s and a second: {MOST_S:g} s; load {load:.1f}")
    print("JSON:", save("kill_campaign", {"figures": figures, "p99_s": p99_s, "load": load, "rows": rows}))
    wrong = sum(row["not_equal"] + row["strange"] for row in figures.values())
    return int(wrong > 0 or p99_s > MOST_S or len(rows) < kills)


if __name__ == "__main__":
    raise SystemExit(main())
