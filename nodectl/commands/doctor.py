"""``nodectl doctor``: every sensor and knob of this node, whether it can be used, and why not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from nodectl.commands.run import configure
from nodectl.config import DEFAULT_PATH, Config
from nodectl.controller import delegation
from nodectl.loop.survey import Survey, fit_to_node, survey
from nodectl.member import declared
from nodectl.shell.errors import NodectlError
from nodectl.shell.plain_text import echo, echo_block, json_text
from nodectl.shell.text_table import render
from nodectl.write.restore import left_behind
from nodectl.write.saves import node_id
from pmu.node import Finding
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
    left = left_behind(state_dir, node_id(ports.lock_path))
    controller = declared.cap_controller(config.scmi) if config.cluster.url else declared.CapController()
    doubts = declared.problems(config, found.layout, ports.files, controller)
    is_doubted = declared.hw_doubt(config, found.layout, controller)
    proof = "" if is_doubted else declared.proof(config, controller)
    verdicts = {mode: _verdict(found, mode) for mode in ("monitor", "optimize")}
    if as_json:
        echo_block(json_text(_report(found, verdicts, left, doubts, proof), indent=2))
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
    for line in [*doubts, *([proof] if proof else [])]:
        echo(f"[cluster]: {line}")
    if left:
        echo(left)


def grouped(rows: Iterable[Finding]) -> list[Finding]:
    """Rows that differ only by numbers in name and reason, as one row with the numbers' ranges in its name."""
    groups: dict[tuple[Any, ...], list[Finding]] = {}
    for row in rows:
        key = (_blank(row.name), row.kind, row.present, row.readable, row.writable, row.locked, _blank(row.why))
        groups.setdefault(key, []).append(row)
    return [_merged(group) for group in groups.values()]


_NUMBER: Final = re.compile(r"\d+")


def _blank(text: str) -> str:
    return _NUMBER.sub("#", text)


def _merged(group: list[Finding]) -> Finding:
    first = group[0]
    if len(group) == 1:
        return first
    name = _with_ranges([row.name for row in group])
    why = first.why if len({row.why for row in group}) == 1 else f"{first.why} (and likewise)"
    return Finding(name, first.kind, first.present, first.readable, first.writable, first.locked, why)


def _with_ranges(names: list[str]) -> str:
    """``cpu/policy0/max_khz`` to ``cpu/policy15/max_khz`` as ``cpu/policy0..15/max_khz``."""
    columns = zip(*(_NUMBER.findall(name) for name in names), strict=True)
    ranges = iter([_ranges(sorted({int(number) for number in column})) for column in columns])
    return _NUMBER.sub(lambda match: next(ranges), names[0])


def _ranges(numbers: list[int]) -> str:
    parts: list[str] = []
    start = previous = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == previous + 1:
            previous = number
            continue
        parts.append(str(start) if start == previous else f"{start}..{previous}")
        if number is not None:
            start = previous = number
    return ",".join(parts)


def _cells(row: Finding) -> tuple[str, ...]:
    marks = tuple("yes" if flag else "no" for flag in (row.present, row.readable, row.writable))
    return (row.name, row.kind, *marks, "LOCKED" if row.locked else "-", row.why or "-")


def _verdict(found: Survey, mode: str) -> str:
    """Whether ``nodectl run`` can run here in this mode, and what it would leave alone."""
    try:
        _, notices = fit_to_node(msgspec.convert({"mode": mode}, Config), found)
    except NodectlError as error:
        return f"no: {error}"
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
