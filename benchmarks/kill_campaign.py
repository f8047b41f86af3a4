"""Agent, writer, restorer and restore are killed or stopped at random moments while knobs are moved: is all as it was?

No systemd: `nodectl run -- sleep` on a served node, as a user of a batch job would run it. Each kill draws its moment,
the clock that the run sets, and its target:

    agent killed, stopped             the writer process must put the knobs back, within the lease and a second
    writer killed, stopped            the restorer must put them back; the agent must start others and go on
    restorer killed                   the writer must put them back; the agent must start others and go on
    agent and writer killed, stopped  the restorer is left, and must put the knobs back
    all three killed                  nobody is left: the next start, `nodectl restore` or what the boot unit runs
    restore killed                    as all three, and a restore (in Python or C) is killed as well, before another one
    start, stop killed                the agent dies before its first tick, or while it ends
    agent killed, granted             under a cluster's grant: knobs that keep the cap end at the safe value
    agent with SCMI killed, stopped   a run with a controller, which writes by itself: cap and clocks

*equal* compares all clock, package and board limits of the node, and the controller's cap, with what was found before
the campaign. *strange*: the agent did not go on where it should have. The knobs that are moved: clocks, package limits
and, where there are GPUs, board limits and clock locks. (NVML cannot read a lock; that none is left is taken from the
save.) To save processor time, agents are forked from this process, which has the agent's modules loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

import twin
from benchmarks.experiment import save
from firmware_bridge.controlpulp.posix import PosixController
from firmware_bridge.scmi.protocols.power_capping import CapGet
from firmware_bridge.scmi.transports.url import open_client
from nodectl.cli import main as nodectl
from nodectl.write.lock import is_locked
from nodectl.write.places import save_places
from nodectl.writer_process.remote_writer import RemoteWriter
from nodectl.writer_process.writer_link import RESTORER, start_writer
from nodectl.writer_process.writer_protocol import LEASE_S
from pmu.system import node_lock_path
from tests.waiting import within

MOST_S: Final = LEASE_S + 1.0

PATIENCE_S: Final = 600.0
"""Starting a process takes a minute on a machine that is busy enough. What takes longer than this is taken for hung."""

LIMITS: Final = (
    "/sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq",
    "/sys/class/powercap/intel-rapl:*/constraint_*_power_limit_uw",
)
CLOCKS_KHZ: Final = (1_200_000, 1_500_000, 1_800_000, 2_100_000, 2_400_000)
NODECTL: Final = (sys.executable, "-m", "nodectl.cli")
LARGE: Final = "genoa-h100"
CAP_W: Final = {False: 250.0, True: 2500.0}
"""By whether the node is the large one: low enough that each package and board limit is moved."""

GRANTED_ENDS_AT: Final = ("1200000\n", "1800000\n")


class Campaign:
    """On the node that this process sees."""

    def __init__(self, state_dir: str, seed: int, is_large: bool) -> None:
        self.state_dir = state_dir
        self.dice = random.Random(seed)
        self.is_large = is_large
        self.lock = node_lock_path()
        self.save = save_places(state_dir, self.lock).node
        self.controller: PosixController | None = None
        self.clocks = sorted(glob(LIMITS[0]))
        self.limits = [path for pattern in LIMITS for path in sorted(glob(pattern))]
        self.found = self.knobs()
        self.log = Path(state_dir) / "log"
        self._below: list[psutil.Process] = []

    def kill_one(self, target: str) -> dict[str, Any]:
        """Start a run, wait until a knob is moved, do it, and look whether all is back."""
        done = TARGETS[target](self)
        equal = self.knobs() == self.found
        for process in self._below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._below.clear()
        self.wait_free()
        left = os.path.exists(self.save)
        if not equal or left:
            self.restore("--leave-cluster")
        return {"target": target, "equal": equal and not left, **done}

    def knobs(self) -> dict[str, str]:
        """All limits of this node, and of its controller if one runs, as text."""
        found = {path: Path(path).read_text() for path in self.limits}
        found |= board_limits() if self.is_large else {}
        return found | {"controller": str(self.cap_mw())} if self.controller else found

    def cap_mw(self) -> int:
        """Of the controller."""
        assert self.controller
        client = open_client(self.controller.url(3))
        client.transport.reply_timeout_s = PATIENCE_S
        try:
            return client.request(CapGet(0)).cap
        finally:
            client.close()

    def is_moved(self) -> bool:
        """Whether the first clock is not as it was: it is moved first."""
        return Path(self.clocks[0]).read_text() != self.found[self.clocks[0]]

    def is_back(self) -> bool:
        """Whether every knob is as it was. The whole is only read once the first clock, which comes back last, is."""
        return not self.is_moved() and self.knobs() == self.found

    def run(self, *more: str) -> psutil.Process:
        """A run around a command."""
        return self.fork([*self.words(), *more, "--", "sleep", "600"])

    def words(self) -> list[str]:
        """Arguments of `nodectl` for a run that moves all kinds of knobs."""
        policy = f"fixed:clock_khz={self.dice.choice(CLOCKS_KHZ)}"
        gpus = ["--gpu-policy", "fixed:clock_mhz=900", "--gpu-locked-mhz", "0"] if self.is_large else []
        cap = ["--cap-w", str(CAP_W[self.is_large])]
        return ["run", "--mode", "optimize", "--cpu-policy", policy, *gpus, *cap, "--state-dir", self.state_dir]

    def fork(self, words: list[str]) -> psutil.Process:
        """`nodectl` with these arguments, in a child of this process."""
        return self.fork_to(lambda: nodectl(words))

    def fork_to(self, act: Callable[[], object]) -> psutil.Process:
        """A child of this process that does this, its standard error in the log."""
        with open(self.log, "w") as log:
            pid = os.fork()
            if pid == 0:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.dup2(log.fileno(), 2)
                sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
                try:
                    act()
                finally:
                    sys.stderr.flush()
                    os._exit(0)
        return psutil.Process(pid)

    def start(self, command: Sequence[str]) -> psutil.Process:
        """Start a program, its standard error in the log."""
        with open(self.log, "w") as log:
            return psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    def wait_moved(self, agent: psutil.Process) -> tuple[psutil.Process, psutil.Process]:
        """Its restorer and writer, once a knob is moved; a random time later."""
        assert within(PATIENCE_S, self.is_moved), f"no knob was moved: {self.log.read_text()}"
        time.sleep(self.dice.uniform(0.0, 0.5))
        return self.below(agent)

    def below(self, agent: psutil.Process) -> tuple[psutil.Process, psutil.Process]:
        """The restorer and the writer of this agent; whatever it has started ends with this kill."""
        self._below += [one for one in agent.children(recursive=True) if one not in self._below]
        restorer = next(one for one in agent.children() if one.name() == RESTORER.name)
        return restorer, restorer.children()[0]

    def back_after(self) -> float:
        """Seconds from now until every knob is as it was."""
        began_s = time.monotonic()
        within(PATIENCE_S, self.is_back)
        return time.monotonic() - began_s

    def restore(self, *options: str) -> None:
        """`nodectl restore`."""
        self.fork(["restore", "--state-dir", self.state_dir, *options]).wait(PATIENCE_S)

    def restore_somehow(self) -> None:
        """By whatever comes first: `nodectl restore`, the program that the boot unit runs, or the next run."""
        way = self.dice.randrange(3)
        if way == 0:
            self.restore()
        elif way == 1:
            self.start([str(RESTORER), "restore", "--if-idle"]).wait(PATIENCE_S)
        else:
            self.fork([*self.words(), "--duration", "200ms"]).wait(PATIENCE_S)

    def end(self, agent: psutil.Process) -> None:
        """An orderly stop."""
        agent.send_signal(signal.SIGTERM)
        agent.wait(PATIENCE_S)

    def wait_free(self) -> None:
        """Until no writer and no restorer has the node."""
        within(PATIENCE_S, lambda: not is_locked(self.lock))


def board_limits() -> dict[str, str]:
    """The power limit of each GPU board, mW. The library is left again: a forked agent must open it by itself."""
    import pynvml

    pynvml.nvmlInit()
    try:
        boards = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        return {
            f"gpu/{number}": str(pynvml.nvmlDeviceGetPowerManagementLimit(board)) for number, board in enumerate(boards)
        }
    finally:
        pynvml.nvmlShutdown()


def _kill(campaign: Campaign, agent: psutil.Process) -> dict[str, Any]:
    """SIGKILL of the agent alone, and how long its knobs take to be back."""
    agent.kill()
    took_s = campaign.back_after()
    agent.wait()
    campaign.wait_free()
    return {"back_s": took_s}


def _agent_killed(campaign: Campaign) -> dict[str, Any]:
    agent = campaign.run()
    campaign.wait_moved(agent)
    return _kill(campaign, agent)


def _agent_stopped(campaign: Campaign, with_writer: bool = False) -> dict[str, Any]:
    agent = campaign.run()
    _, writer = campaign.wait_moved(agent)
    agent.suspend()
    if with_writer:
        writer.suspend()
    took_s = campaign.back_after()
    agent.resume()
    moved_again = within(PATIENCE_S, campaign.is_moved)
    if moved_again:
        campaign.below(agent)
    campaign.end(agent)
    return {"back_s": took_s, "strange": not moved_again}


def _goes_on(campaign: Campaign, act: Callable[[psutil.Process, psutil.Process], None]) -> dict[str, Any]:
    agent = campaign.run()
    restorer, writer = campaign.wait_moved(agent)
    began_s = time.monotonic()
    act(restorer, writer)

    def has_started_another() -> bool:
        return "started again" in campaign.log.read_text()

    went_on = within(PATIENCE_S, has_started_another) and within(PATIENCE_S, campaign.is_moved)
    again_s = time.monotonic() - began_s
    if went_on:
        campaign.below(agent)
    campaign.end(agent)
    return {"again_s": again_s, "strange": not went_on}


def _two_killed(campaign: Campaign) -> dict[str, Any]:
    agent = campaign.run()
    _, writer = campaign.wait_moved(agent)
    for process in campaign.dice.sample((agent, writer), 2):
        process.kill()
    took_s = campaign.back_after()
    agent.wait()
    campaign.wait_free()
    return {"back_s": took_s}


def kill_all(campaign: Campaign) -> None:
    """A run, all of whose processes are killed: in half of the cases so that none has time to notice."""
    agent = campaign.run()
    processes = (agent, *campaign.wait_moved(agent))
    if campaign.dice.random() < 0.5:
        for process in processes:
            process.suspend()
    for process in campaign.dice.sample(processes, 3):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    agent.wait()
    campaign.wait_free()


def _all_killed(campaign: Campaign) -> dict[str, Any]:
    kill_all(campaign)
    was_moved = campaign.is_moved()
    campaign.restore_somehow()
    return {"was_moved": was_moved}


def _restore_killed(campaign: Campaign) -> dict[str, Any]:
    kill_all(campaign)
    if campaign.dice.random() < 0.5:
        killed = campaign.start([str(RESTORER), "restore"])
        time.sleep(campaign.dice.uniform(0.0, 0.01))
    else:
        killed = campaign.fork(["restore", "--state-dir", campaign.state_dir])
        time.sleep(campaign.dice.uniform(0.0, 0.2))
    killed.kill()
    killed.wait()
    campaign.restore_somehow()
    return {}


def _start_killed(campaign: Campaign) -> dict[str, Any]:
    agent = campaign.start([*NODECTL, *campaign.words(), "--", "sleep", "600"])
    time.sleep(campaign.dice.uniform(0.2, 2.0))
    campaign._below += agent.children(recursive=True)
    return _kill(campaign, agent)


def _stop_killed(campaign: Campaign) -> dict[str, Any]:
    agent = campaign.run()
    campaign.wait_moved(agent)
    agent.send_signal(signal.SIGTERM)
    time.sleep(campaign.dice.uniform(0.0, 0.1))
    return _kill(campaign, agent)


def _granted_killed(campaign: Campaign) -> dict[str, Any]:
    names = [f"cpu/{Path(path).parent.name}/max_khz" for path in campaign.clocks]
    agent = campaign.fork_to(lambda: granted(campaign.state_dir, names))
    campaign.wait_moved(agent)
    expected = campaign.found | dict(zip(campaign.clocks, GRANTED_ENDS_AT, strict=False))
    agent.kill()
    began_s = time.monotonic()
    right = within(PATIENCE_S, lambda: campaign.knobs() == expected)
    took_s = time.monotonic() - began_s
    agent.wait()
    campaign.wait_free()
    campaign.restore("--leave-cluster")
    return {"back_s": took_s, "strange": not right}


def granted(state_dir: str, names: Sequence[str]) -> None:
    """An agent in small: the first two of its knobs keep a cap. The safe value of the first is below what is set, that
    of the second above: a restore may lower the one and must not raise the other."""
    writer = RemoteWriter(lambda: start_writer(state_dir))
    writer.start()
    writer.limit_restores({names[0]: 1_200_000, names[1]: 2_000_000})
    while True:
        writer.apply(dict.fromkeys(names, 1_800_000))
        time.sleep(0.1)


def _with_controller(campaign: Campaign, act: Callable[[psutil.Process], None]) -> dict[str, Any]:
    """A run with SCMI writes by itself, and starts itself below a restorer."""
    campaign.controller = PosixController(Path(campaign.state_dir) / "scmi", "--fifo", "try")
    campaign.found = campaign.knobs()
    settings = Path(campaign.state_dir) / "scmi.toml"
    settings.write_text(f'[scmi]\nurl = "{campaign.controller.url(2)}"\nknobs = {{"node/cap_mw" = "package"}}\n')
    words = [*NODECTL, *campaign.words(), "--config", str(settings)]
    restorer = campaign.start(words)
    assert within(PATIENCE_S, lambda: bool(campaign.cap_mw())), f"no cap was set: {campaign.log.read_text()}"
    assert within(PATIENCE_S, campaign.is_moved)
    time.sleep(campaign.dice.uniform(0.0, 0.5))
    campaign._below += restorer.children()
    act(restorer.children()[0])
    took_s = campaign.back_after()
    restorer.wait(PATIENCE_S)
    is_strange = campaign.knobs() != campaign.found
    campaign.controller.stop()
    campaign.controller = None
    campaign.found.pop("controller")
    return {"back_s": took_s, "strange": is_strange}


TARGETS: Final[dict[str, Callable[[Campaign], dict[str, Any]]]] = {
    "agent killed": _agent_killed,
    "agent stopped": _agent_stopped,
    "writer killed": lambda campaign: _goes_on(campaign, lambda _, writer: writer.kill()),
    "writer stopped": lambda campaign: _goes_on(campaign, lambda _, writer: writer.suspend()),
    "restorer killed": lambda campaign: _goes_on(campaign, lambda restorer, _: restorer.kill()),
    "agent and writer killed": _two_killed,
    "agent and writer stopped": lambda campaign: _agent_stopped(campaign, with_writer=True),
    "all three killed": _all_killed,
    "restore killed": _restore_killed,
    "start killed": _start_killed,
    "stop killed": _stop_killed,
    "agent killed, granted": _granted_killed,
    "agent with SCMI killed": lambda campaign: _with_controller(campaign, psutil.Process.kill),
    "agent with SCMI stopped": lambda campaign: _with_controller(campaign, psutil.Process.suspend),
}


def inside(chosen: Sequence[str], seed: int, state_dir: str, is_large: bool) -> int:
    """On the served node: one JSON line per kill."""
    campaign = Campaign(state_dir, seed, is_large)
    for target in chosen:
        print(json.dumps(campaign.kill_one(target)), flush=True)
    return 0


def run_on_nodes(chosen: Sequence[str], machine: str, seed: int, is_large: bool, nodes: int) -> list[dict[str, Any]]:
    """The campaign on several served nodes at the same time: kills spend most of their time asleep."""
    with ThreadPoolExecutor(nodes) as pool:
        parts = [pool.submit(run, chosen[at::nodes], machine, seed + at, is_large) for at in range(nodes)]
        return [row for part in parts for row in part.result()]


def run(chosen: Sequence[str], machine: str = "curie", seed: int = 1, is_large: bool = False) -> list[dict[str, Any]]:
    """The campaign on a served node of this machine, as rows."""
    with tempfile.TemporaryDirectory() as directory:
        command = [
            *NODECTL, "twin", "run", "--machine", large_machine(directory) if is_large else machine,
            "--workload", "hpl", "--duration", "10h", "--",
            sys.executable, "-m", "benchmarks.kill_campaign", "--inside", directory,
            "--seed", str(seed), *(["--large"] if is_large else []), *(f"--target={target}" for target in chosen),
        ]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(rows) != len(chosen):
        print(f"only {len(rows)} of {len(chosen)} kills were done (exit status {done.returncode})", file=sys.stderr)
    return rows


def large_machine(directory: str) -> str:
    """384 logical CPUs with 4 GPUs, and package limits that can be set, as on machines of Intel."""
    text = (Path(twin.__file__).parent / "machines" / f"{LARGE}.toml").read_text()
    zone = 'kind = "package"\n'
    limits = """writable = true
constraints = [
    { name = "long_term", limit_w = 400.0, window_us = 999424, max_w = 400.0 },
    { name = "short_term", limit_w = 480.0, window_us = 1952, max_w = 500.0 },
]
"""
    head, found, rest = text.partition("[[zone]]")
    assert found and zone in rest and "count = 8\n" in rest
    path = Path(directory) / "large.toml"
    path.write_text(head + found + rest.replace(zone, zone + limits, 1).replace("count = 8\n", "count = 4\n"))
    return str(path)


def table(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By target: how many, how many were not as they should be, and times."""
    found: dict[str, dict[str, float]] = {}
    for target in TARGETS:
        of = [row for row in rows if row["target"] == target]
        if not of:
            continue
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
    parser.add_argument("--kills", type=int, help="how many (default: 900, or 100 with --large)")
    parser.add_argument("--machine", default="curie", help="of the served node (default: curie)")
    parser.add_argument("--large", action="store_true", help="384 CPUs, 4 GPUs and package limits")
    parser.add_argument("--target", action="append", help="only this row of the table; may be repeated")
    parser.add_argument(
        "--nodes", type=int, help="so many at the same time (default: 2; --large, which fills a core: 1)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        return inside(options.target, options.seed, options.inside, options.large)
    rows_of = options.target or tuple(TARGETS)
    kills = options.kills or (2 * len(rows_of) if options.quick else 100 if options.large else 900)
    began_s = time.monotonic()
    chosen = [rows_of[number % len(rows_of)] for number in range(kills)]
    rows = run_on_nodes(chosen, options.machine, options.seed, options.large, options.nodes or 2 - options.large)
    took_s, used_s = time.monotonic() - began_s, used_by_children_s()
    figures = table(rows)
    columns = ("kills", "not_equal", "strange", "back_s p50", "back_s p99", "back_s max", "again_s p50", "again_s max")
    print(f"{'target':26}" + "".join(f"{column:>13}" for column in columns))
    for target, row in figures.items():
        cells = (f"{row[column]:13.3g}" if column in row else f"{'':13}" for column in columns)
        print(f"{target:26}" + "".join(cells))
    late = [row["back_s"] for row in rows if "back_s" in row]
    p99_s = float(np.percentile(late, 99))
    moved = sum(bool(row.get("was_moved")) for row in rows)
    load = psutil.getloadavg()[0]
    print(f"back p99 {p99_s:.3f} s; lease {LEASE_S:g} s and a second: {MOST_S:g} s; load {load:.1f}")
    print(f"all three killed: {moved} times knobs were left moved, for whatever started next")
    print(f"{took_s:.0f} s, {took_s / len(rows):.2f} s per kill; processor time {used_s / len(rows):.2f} s per kill")
    content = {"figures": figures, "p99_s": p99_s, "load": load, "used_s": used_s, "took_s": took_s, "rows": rows}
    print("JSON:", save("kill_campaign_large" if options.large else "kill_campaign", content))
    wrong = sum(row["not_equal"] + row["strange"] for row in figures.values())
    return int(wrong > 0 or p99_s > MOST_S or len(rows) < kills)


def used_by_children_s() -> float:
    """Processor time of all processes below this one that have ended, the emulated node's own with them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
