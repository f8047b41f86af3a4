"""``nodectl doctor``: every sensor and knob of this node, whether it can be used, and why not."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from foundation.shell.errors import NodectlError
from foundation.shell.number_ranges import blank, with_ranges
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render
from nodectl.calibrated.knob_waits import default_latencies
from nodectl.calibrated.node_calibration import find_calibration, with_measured
from nodectl.commands import service_account
from nodectl.commands.run import configure
from nodectl.config import DEFAULT_PATH, Config
from nodectl.controller import delegation
from nodectl.knobs import known_tools
from nodectl.knobs.api import unit_sign
from nodectl.knobs.gpu_limits import ClockLock
from nodectl.loop.survey import Survey, fit_to_node, survey
from nodectl.member import declared
from nodectl.policies.registry import NONE
from nodectl.write.ceilings import Ceilings
from nodectl.write.device_names import DeviceNames
from nodectl.write.places import SavePlaces, save_places
from nodectl.write.restore import left_behind, read_node
from nodectl.write.saves import SavedState, node_id
from pmu.node import Finding
from pmu.ports import Ports
from pmu.system import system_ports

HEADINGS: Final = ("what", "kind", "found", "reads", "writes", "locked", "remarks")


@click.command()
@click.option(
    "--state-dir", metavar="DIR", default=Config().state_dir, show_default=True, help="Where a save would be."
)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help=f"Settings with a controller (default: {DEFAULT_PATH}).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one entry per sensor and knob.")
def doctor(state_dir: str, file: Path | None, as_json: bool) -> None:
    """List what this node has, what can be read and written, what is locked, and why.

    Declarations under [cluster] of the settings are checked against it; a line says what does not agree, and what to
    do. Rows that differ only in numbers are shown as one; --json has them all.
    """
    config = configure(file, {})
    ports = system_ports()
    found = survey(ports)
    found = replace(found, knob_rows=[*found.knob_rows, *delegation.findings(config.scmi)])
    found = replace(found, sensor_rows=[_left_out(row, config) for row in found.sensor_rows])
    left = left_behind(state_dir, node_id(ports.lock_path), ports.lock_path)
    controller = declared.cap_controller(config.scmi) if config.cluster.url else declared.CapController()
    doubts = declared.problems(config, found.layout, ports.files, controller)
    is_doubted = declared.hw_doubt(config, found.layout, controller)
    proof = "" if is_doubted else declared.proof(config, controller)
    verdicts = {mode: _verdict(found, mode, config) for mode in ("monitor", "optimize")}
    ceilings = _ceilings(found, save_places(state_dir, ports.lock_path), node_id(ports.lock_path))
    others = [*_site_limits(ceilings, config), *_site_locks(found, config), *_applications_clocks(found)]
    others += known_tools.remarks(ports.files, [row.name for row in found.knob_rows])
    others += service_account.remarks(config, service_account.service_user())
    others += _calibration(config, ports, found)
    if as_json:
        report = _report(found, verdicts, left, doubts, proof)
        report |= {"ceilings": dict(ceilings.site), "others": others}
        echo_block(json_text(report, indent=2))
        return
    layout = found.layout
    echo(
        f"{len(layout.cpus)} logical CPUs in {len(layout.domains)} frequency domains,"
        f" {len(layout.zones)} energy zones, {len(layout.gpus)} GPUs"
    )
    echo("")
    echo_block(render(HEADINGS, [_cells(row) for row in grouped([*found.sensor_rows, *found.knob_rows])]))
    echo("")
    for mode, verdict in verdicts.items():
        echo(f"{mode}: {verdict}")
    for line in others:
        echo(line)
    for line in [*doubts, *([proof] if proof else [])]:
        echo(f"[cluster]: {line}")
    if left:
        echo(left)


def _calibration(config: Config, ports: Ports, found: Survey) -> list[str]:
    """Which files of a calibration apply to this node, and what each policy would use."""
    known = find_calibration(config, ports, found.layout, datetime.datetime.now(datetime.UTC))
    lines = (*known.lines, *with_measured(config, known)[1], *default_latencies(found.knobs, known.deadlines))
    return [f"calibration: {line}" for line in lines]


def _ceilings(found: Survey, places: SavePlaces, node: str) -> Ceilings:
    """The ceilings of a run that would start now; of knobs that a run has moved, what that run has captured."""
    ceilings = Ceilings(found.knobs)
    try:
        state = read_node(places, node)
    except NodectlError:
        state = SavedState()
    ceilings.start(DeviceNames(found.knobs).all_here(state.knobs))
    return ceilings


def _site_limits(ceilings: Ceilings, config: Config) -> list[str]:
    """What the site or another program has set below the hardware's most; equal limits share a line."""
    lines: dict[tuple[str, str], list[str]] = {}
    for name, value in ceilings.site.items():
        highest, unit = ceilings.highest(name), unit_sign(name.rpartition("_")[2])
        if highest is not None and value >= highest:
            continue
        most = f" (the hardware: {highest} {unit})" if highest else ""
        is_raised = any(fnmatchcase(name, pattern) for pattern in config.may_raise)
        bound = "may_raise lets caps and policies set more" if is_raised else "no cap, grant or policy sets more"
        lines.setdefault((blank(name), f"{value} {unit}{most}: {bound}"), []).append(name)
    return [f"ceiling: {with_ranges(names)}: {text}" for (_, text), names in lines.items()]


def _site_locks(found: Survey, config: Config) -> list[str]:
    """What is known of the clock locks of the site, for each GPU."""
    lines: dict[str, list[str]] = {}
    for gpu in found.layout.gpus:
        declared = config.gpu.baseline_mhz(gpu.index, gpu.uuid)
        text = f"declared as locked to {declared} MHz" if declared else "declared as not locked"
        if declared < 0:
            text = (
                "not declared: a run observes it under load, and leaves the GPU alone until it knows"
                " ([gpu] locked_clock_mhz, 0: not locked)"
            )
        lines.setdefault(text, []).append(f"gpu/{gpu.index}")
    return [f"clock lock of the site: {with_ranges(names)}: {text}" for text, names in lines.items()]


def _left_out(row: Finding, config: Config) -> Finding:
    """A card on the bus that NVML does not show, with what the settings say of it."""
    kind, _, address = row.name.partition("-")
    if kind != "pci" or not any(fnmatchcase(address, pattern) for pattern in config.gpu.absent):
        return row
    return msgspec.structs.replace(row, why="left out by [gpu] absent: neither counted nor looked for")


def _applications_clocks(found: Survey) -> list[str]:
    """The GPUs whose applications clocks are below their default; no lock, though the clock looks like one."""
    lines: dict[int, list[str]] = {}
    for knob in found.knobs:
        if isinstance(knob, ClockLock) and (clock_mhz := knob.applications_mhz()):
            lines.setdefault(clock_mhz, []).append(knob.name.rpartition("/")[0])
    what = "no lock runs faster; `nvidia-smi -rac` resets them"
    return [f"applications clocks: {with_ranges(names)}: set to {mhz} MHz: {what}" for mhz, names in lines.items()]


def grouped(rows: Iterable[Finding]) -> list[Finding]:
    """Rows that differ only by numbers in name and reason, as one row with the numbers' ranges in its name."""
    groups: dict[tuple[Any, ...], list[Finding]] = {}
    for row in rows:
        key = (blank(row.name), row.kind, row.present, row.readable, row.writable, row.locked, blank(row.why))
        groups.setdefault(key, []).append(row)
    return [_merged(group) for group in groups.values()]


def _merged(group: list[Finding]) -> Finding:
    first = group[0]
    if len(group) == 1:
        return first
    name = with_ranges([row.name for row in group])
    why = with_ranges([row.why for row in group])
    return Finding(name, first.kind, first.present, first.readable, first.writable, first.locked, why)


def _cells(row: Finding) -> tuple[str, ...]:
    marks = tuple("yes" if flag else "no" for flag in (row.present, row.readable, row.writable))
    return (row.name, row.kind, *marks, "LOCKED" if row.locked else "-", row.why or "-")


def _verdict(found: Survey, mode: str, config: Config) -> str:
    """Whether ``nodectl run`` can run here in this mode, and what it would leave alone: with the settings, if they are
    of this mode. Where no policy can decide, a cap in watts may yet be kept."""
    capped = {"mode": mode, "caps": {"node_w": 1.0}, "cpu_policy": {"name": NONE}, "gpu_policy": {"name": NONE}}
    try:
        given = config if config.mode == mode else msgspec.convert({"mode": mode}, Config)
        _, notices = fit_to_node(given, found)
    except NodectlError as error:
        try:
            fit_to_node(msgspec.convert(capped, Config), found)
        except NodectlError:
            return f"no: {error}"
        return f"caps in watts only (caps.node_w, or [cluster], with policies {NONE!r}): {error}"
    return "yes" + "".join(f"; {notice}" for notice in notices)


def _report(found: Survey, verdicts: dict[str, str], left: str, doubts: list[str], proof: str) -> dict[str, Any]:
    layout = found.layout
    return {
        "cpus": len(layout.cpus),
        "domains": len(layout.domains),
        "zones": [zone.name for zone in layout.zones],
        "gpus": [gpu.name for gpu in layout.gpus],
        "sensors": [msgspec.to_builtins(row) for row in found.sensor_rows],
        "knobs": [msgspec.to_builtins(row) for row in found.knob_rows],
        "runs": verdicts,
        "left_behind": left,
        "cluster": doubts,
        "lease": proof,
    }
