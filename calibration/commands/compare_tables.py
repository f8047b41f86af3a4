"""``clusterctl calibration compare``: how the nodes of one model differ, by their tables."""

from __future__ import annotations

from pathlib import Path

import click

from calibration.table.node_variability import Factor, Variability, compared
from calibration.table.table_file import read_table
from foundation.sealed_file import write_whole
from foundation.shell.command_line import FloatRange
from foundation.shell.errors import UsageError
from foundation.shell.plain_text import echo, echo_block
from foundation.shell.text_table import render

HEAD = """\
# What each node draws for the same work over the median node of its model, by `clusterctl calibration compare`.
# The setting `factors` under [nodes] of cluster.toml names this file: sharers give hungrier nodes more watts.
"""


@click.group()
def calibration() -> None:
    """What the tables of several nodes say together."""


@calibration.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the factors, for the sharers, to this."
)
@click.option(
    "--rest-w", type=FloatRange(0.0, 1e5), default=0.0, show_default=True,
    help="What a node draws outside its packages, where nodes have no meter.",
)  # fmt: skip
def compare(files: tuple[Path, ...], out: Path | None, rest_w: float) -> None:
    """Compare tables NODE.toml of nodes of one model: what each draws and how fast it is, over the median node."""
    tables = {}
    for file in files:
        if file.stem in tables:
            raise UsageError(f"{file}: a table of {file.stem} was given already: files are named by their nodes")
        tables[file.stem] = read_table(file)
    found = compared(tables, rest_w)
    echo_block("\n".join(lines_of(found)))
    if out:
        write_whole(out, factors_text(found))
        echo(f"written: {out}")


def lines_of(found: Variability) -> list[str]:
    """For people."""
    emulated = "EMULATED " if found.is_emulated else ""
    meter = "the nodes' meters" if found.by_meter else "RAPL (without a meter give --rest-w for factors of whole nodes)"
    rows = [(one.node, _cell(one.watts), _cell(one.speed), one.outlier) for one in found.nodes]
    return [
        f"{emulated}{len(found.nodes)} nodes with {found.model}, {found.points} points of each, watts by {meter}",
        render(("node", "watts", "speed", ""), rows),
        f"watts differ by {found.watts_pct:.1f} %, speed by {found.speed_pct:.1f} %",
        *(f"remark: {line}" for line in found.remarks),
    ]


def factors_text(found: Variability) -> str:
    """The file for the sharers."""
    lines = [HEAD + f"is_emulated = {str(found.is_emulated).lower()}"]
    for one in found.nodes:
        lines += ["", f'["{one.node}"]', f"watts = {one.watts.value:.4f}", f"half = {one.watts.half:.4f}"]
    return "\n".join(lines) + "\n"


def _cell(factor: Factor) -> str:
    return f"{factor.value:.3f} +-{factor.half:.3f}"
