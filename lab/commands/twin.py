"""``nodectl twin``: the emulated node's own commands. Nothing else here imports it."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from foundation.shell.errors import NodectlError, UsageError
from foundation.shell.log import logger
from nodectl.loop.interruptions import STOP_SIGNALS
from twin.cli import twin
from twin.errors import TwinError

if TYPE_CHECKING:
    from lab.emulated.emulated_node import NodePlan

__all__ = ["twin"]

_say: Final = logger("nodectl twin node")


@twin.command()
@click.option("--machine", default="curie", show_default=True, help="Name of a shipped machine, or a TOML file.")
@click.option("--cluster", default="tcp://127.0.0.1:7410", show_default=True, help="URL of the cluster agent.")
@click.option(
    "--keys", type=click.Path(path_type=Path), default=Path("/etc/nodectl/keys"), show_default=True,
    help="Where NAME.key of each node is, and cluster.pub or cluster.key.",
)  # fmt: skip
@click.option("--config", "file", type=click.Path(path_type=Path), help="Further settings of the agents.")
@click.option("--seed", default=1, show_default=True, help="Seed of the first node; the others count up from it.")
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Write the truth of each node to this folder, as JSON lines."
)
@click.option(
    "--workload-sockets", type=click.Path(path_type=Path),
    help="Listen at NAME in this folder: a workload whose name comes there runs until its connection ends.",
)  # fmt: skip
@click.option(
    "--run", type=click.Path(path_type=Path),
    help="NAME in this folder is the node's /run/nodectl, where a prolog says which jobs are there.",
)  # fmt: skip
@click.option(
    "--dispatch", type=click.Path(path_type=Path),
    help="The directory of nodes.toml and allowed: these nodes dispatch their jobs themselves (docs/dardis.md).",
)  # fmt: skip
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def node(
    machine: str, cluster: str, keys: Path, file: Path | None, seed: int, trace: Path | None,
    workload_sockets: Path | None, run: Path | None, dispatch: Path | None, names: tuple[str, ...],
) -> int:  # fmt: skip
    """Run emulated nodes of a cluster: for each NAME a process with a twin and the real agent, until SIGTERM or Ctrl-C.

    They are capped like any node, and run one kind of job: `clusterctl submit ... -- twin-workload NAME TIME`, the work
    that takes TIME at the highest clock. No root, no FUSE: no program but the agent sees the emulated node.
    """
    try:
        from lab.emulated.emulated_node import NodePlan
        from lab.emulated.watts import node_watts
        from twin.machine import load_machine
    except ModuleNotFoundError as error:
        raise NodectlError(f"emulated nodes of a cluster need {error.name}: pip install 'nodectl[cluster]'") from None
    try:
        model = load_machine(machine)
    except TwinError as error:
        raise UsageError(str(error)) from None
    if trace:
        trace.mkdir(parents=True, exist_ok=True)
    watts = node_watts(model)
    plans = [
        NodePlan(
            name,
            model,
            watts,
            cluster,
            keys,
            file,
            seed + at,
            trace / f"{name}.jsonl" if trace else None,
            workload_sockets,
            run,
            dispatch,
        )
        for at, name in enumerate(names)
    ]
    _say(
        f"EMULATED {model.name}: {len(names)} node(s), each TDP {watts.tdp_w:g} W, MOP {watts.mop_w:g} W, "
        f"safe {watts.safe_w:g} W, of it constant {watts.rest_w:g} W"
    )
    return _run_all(plans)


@twin.command()
@click.option(
    "--vhost", "places", metavar="[AGENT=]PATH", multiple=True,
    help="Serve this agent (default ospm, as Linux is) to a virtual machine, at a vhost-user socket of mode 0600.",
)  # fmt: skip
@click.option("--load", type=click.IntRange(0, 4), default=3, show_default=True, help="Class of the instructions.")
@click.option("--fifo", type=click.Choice(["try", "require"]), help="Run the controller as SCHED_FIFO.")
@click.option(
    "--rtl",
    "core",
    type=click.Choice(["vexriscv", "cv32e40p", "litex"]),
    help="On this core, simulated from its RTL.",
)
@click.option(
    "--trace", type=click.Path(path_type=Path), metavar="FILE", help="With --rtl: each instruction, with its cycle."
)
@click.option("--wave", type=click.Path(path_type=Path), metavar="FILE", help="With --rtl: the core's signals, as FST.")
@click.argument("folder", type=click.Path(path_type=Path))
def controller(
    places: tuple[str, ...],
    load: int,
    fifo: str | None,
    core: str | None,
    trace: Path | None,
    wave: Path | None,
    folder: Path,
) -> int:
    """Run an on-chip controller with its chip, in real time, until SIGTERM or Ctrl-C.

    The ControlPULP firmware as a process. Its agents connect to the sockets in FOLDER, which is made if it is missing:
    `nodectl scmi get scmi+shm:FOLDER/runtime.sock`, or `url` under `[scmi]` for `nodectl run`. A virtual machine's
    kernel is an agent as well, through --vhost (docs/scmi.md has the options of QEMU and user-mode Linux).

    With --rtl the firmware runs on a core in RTL, as on a board: one agent, on the serial line FOLDER/line, and some
    hundred times slower than real time. The line's URL, with the timeouts that this takes, is printed.
    """
    if core:
        if places or fifo:
            raise UsageError("--rtl has a serial line alone: neither --vhost nor --fifo")
        return _on_rtl(folder, core, load, trace, wave)
    if trace or wave:
        raise UsageError("--trace and --wave are for --rtl")
    try:
        from firmware_bridge.controlpulp.posix import AGENTS
        from lab.emulated.emulated_controller import serve
    except ImportError as error:
        raise NodectlError(f"an emulated controller is not built here ({error}); `make setup` builds it") from None
    serve(folder, _guests(places, AGENTS), load, fifo, lambda line: print(line, flush=True), _remark)
    return 0


def _on_rtl(folder: Path, core: str, load: int, trace: Path | None, wave: Path | None) -> int:
    try:
        from lab.emulated.emulated_rtl import serve
    except ImportError as error:
        raise NodectlError(f"an emulated controller is not built here ({error}); `make setup` builds it") from None
    serve(folder, core, load, trace, wave, lambda line: print(line, flush=True))
    return 0


def _guests(places: tuple[str, ...], agents: dict[int, str]) -> dict[int, Path]:
    """Per agent, the socket where a guest connects."""
    numbers = {name: agent for agent, name in agents.items()}
    guests: dict[int, Path] = {}
    for place in places:
        name, _, path = place.partition("=")
        if name not in numbers:
            name, path = "ospm", place
        if not path:
            raise UsageError(f"--vhost {place!r}: the path of the socket is missing")
        if numbers[name] in guests:
            raise UsageError(f"--vhost {place}: {name} has a socket already; one guest is one agent")
        guests[numbers[name]] = Path(path)
    return guests


def _remark(line: str) -> None:
    if line:
        print(f"nodectl twin controller: {line}", file=sys.stderr, flush=True)


def _run_all(plans: list[NodePlan]) -> int:
    """Run a process for each; stop signals are passed on, and all of them end before this does."""
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP_SIGNALS, signal.SIGCHLD})
    running: dict[int, str] = {}
    status = 0
    for plan in plans:
        child = os.fork()
        if child == 0:
            _be(plan, parent)
        running[child] = plan.name
    while running:
        if signal.sigwaitinfo({*STOP_SIGNALS, signal.SIGCHLD}).si_signo in STOP_SIGNALS:
            for child in running:
                os.kill(child, signal.SIGTERM)
            continue
        for child in list(running):
            pid, ended = os.waitpid(child, os.WNOHANG)
            if pid and (code := os.waitstatus_to_exitcode(ended)):
                status = max(status, code if code > 0 else 1)
                _say(f"{running[pid]}: " + (f"killed by signal {-code}" if code < 0 else f"exit status {code}"))
            if pid:
                del running[pid]
    return status


def _be(plan: NodePlan, parent: int) -> NoReturn:
    """In the forked child: run one node, which ends with its parent."""
    from twin._serve import lib

    from lab.emulated.emulated_node import run_node

    status = 1
    say = functools.partial(_say_of, plan.name)
    try:
        os.setpgid(0, 0)  # Ctrl-C on the terminal is for the parent, which passes it on
        if lib.process_die_with(parent, signal.SIGTERM) == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            say(run_node(plan, say).line())
            status = 0
    except NodectlError as error:
        say(str(error))
        status = error.exit_status
    except TwinError as error:
        say(str(error))
        status = 2
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(status)


def _say_of(name: str, line: str) -> None:
    _say(f"{name}: {line}")
