"""``nodectl calibrate limits``: minimal operating power, latencies of knobs, and caps of this node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from calibration.commands.calibrate_kernels import kernel_port
from calibration.commands.calibrate_run import own_writer, through_writer
from calibration.commands.result_files import LIMITS, out_option, refuse_existing
from calibration.kernels.emulated import is_served
from calibration.limits.heartbeat import NativeHeartbeat, served_heartbeat
from calibration.limits.limits_file import report_of_limits, text_of_limits
from calibration.limits.limits_of_node import measure_limits
from calibration.limits.minimal_power import MopPlan
from calibration.limits.other_readers import PyRapl
from calibration.limits.probes import HeartbeatPort
from calibration.limits.scmi_cap import ScmiCap
from calibration.limits.session_probes import Knobs
from calibration.measure.node_session import NodeSession, SessionError, open_session
from calibration.measure.refusals import refuse_other_use
from firmware_bridge.errors import ScmiError
from firmware_bridge.scmi.controller import Controller
from foundation.sealed_file import sealed, write_whole
from foundation.shell.command_line import FloatRange
from foundation.shell.plain_text import echo
from nodectl.config import Config
from nodectl.controller.scmi_link import patient_client
from nodectl.loop.interruptions import Interruptions
from pmu.ports import Ports
from pmu.system import system_ports


@click.command()
@out_option(LIMITS)
@click.option("--step-w", type=FloatRange(0.5, 100.0), default=MopPlan().step_w, show_default=True)
@click.option(
    "--bound-ms", type=FloatRange(0.1, 100.0), default=MopPlan().bound_s * 1e3, show_default=True,
    help="99 of 100 heartbeats must be less late than this.",
)  # fmt: skip
@click.option("--gpus", is_flag=True, help="Also the knobs of the first GPU, under a load that you run on it.")
@click.option(
    "--scmi", "url", metavar="URL", help="Also the cap of this SCMI controller, e.g. scmi+shm:/run/scmi.sock."
)
@click.option("--domain", default="package", show_default=True, help="Its power domain, by name or number.")
@click.option("--state-dir", metavar="DIR", default=Config().state_dir, show_default=True, help="Where a lock is kept.")
@click.option("--again", is_flag=True, help="Replace a file.")
def limits(
    out: Path, step_w: float, bound_ms: float, gpus: bool, url: str | None, domain: str, state_dir: str, again: bool
) -> int:
    """Measure how low this node can be capped, how soon its knobs have an effect, and how well caps are kept.

    Nothing else may run on it: the search goes down until the node responds slowly. Knobs are moved by a process that
    puts them back at the end, on Ctrl-C and after a kill. With --scmi this process moves them: after a kill -9 of it,
    `nodectl restore` puts them back.
    """
    refuse_existing(out, again)
    ports = system_ports()
    refuse_other_use(ports.files)
    plan = MopPlan(step_w=step_w, bound_s=bound_ms / 1e3)
    with Interruptions(ports.clock) as interruptions, kernel_port(ports.files) as (port, _):
        end = interruptions.wait, interruptions.is_over
        if url:
            with _controller(url) as controller:
                cap = ScmiCap(controller, url, domain)
                with open_session(ports, port, state_dir, None, *end, others=[cap.for_writer]) as session:
                    return _measure(session, plan, gpus, out, cap)
        with contextlib.closing(own_writer(state_dir)) as writer:
            writer.start()
            with open_session(through_writer(ports, writer), port, state_dir, writer, *end) as session:
                return _measure(session, plan, gpus, out)


@contextlib.contextmanager
def _controller(url: str) -> Iterator[Controller]:
    """A connection of our own. ``SessionError`` in one line."""
    try:
        controller = Controller(patient_client(url))
    except ScmiError as error:
        raise SessionError(f"--scmi {url}: {error}") from None
    try:
        yield controller
    finally:
        with contextlib.suppress(ScmiError):
            controller.close()


def _measure(session: NodeSession, plan: MopPlan, gpus: bool, out: Path, scmi: ScmiCap | None = None) -> int:
    def wait(until_ns: int) -> None:
        session.wait(until_ns)
        if session.is_over():
            raise KeyboardInterrupt

    knobs = Knobs(session.ports, session.writer, wait)
    try:
        found = measure_limits(
            session, knobs, _heartbeat(session.ports), plan, gpus, scmi, lambda line: echo(line, to_stderr=True), PyRapl
        )
    except KeyboardInterrupt:
        raise SessionError("stopped: nothing is written, and every knob is back") from None
    write_whole(out, sealed(text_of_limits(found)))
    for line in report_of_limits(found):
        echo(line)
    echo(f"written: {out}")
    return 0 if found.mop else 1


def _heartbeat(ports: Ports) -> HeartbeatPort:
    return served_heartbeat() if is_served() else NativeHeartbeat(ports.clock)
