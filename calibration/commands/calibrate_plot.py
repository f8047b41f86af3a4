"""``nodectl calibrate plot``: the curves of a table with their intervals, as a picture."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from calibration.commands.result_files import file_argument
from calibration.table.table_file import read_table
from foundation.sealed_file import SealedFileError
from foundation.shell.command_line import needs_extras
from foundation.shell.errors import NodectlError, UsageError
from foundation.shell.plain_text import echo

FORMATS = (".png", ".svg", ".pdf")


@click.command()
@file_argument()
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("pstates.svg"), show_default=True,
    help=f"The picture: {', '.join(FORMATS)}.",
)  # fmt: skip
@click.option("--level", type=click.Choice(["one", "half", "all"]), default="all", show_default=True, help="Cores.")
def plot(file: Path, out: Path, level: str) -> None:
    """Draw watts, speed and joules per unit of each kernel over the clock, with 95 % intervals."""
    if out.suffix not in FORMATS:
        raise UsageError(f"--out {out}: is no {', '.join(FORMATS)}")
    table = read_table(file)
    if not any(one == level for _, one in table.series()):
        raise SealedFileError(f"{file}: has nothing for {level} cores")
    if find_spec("matplotlib") is None:
        raise NodectlError(needs_extras(["matplotlib"]))
    from calibration.table.table_figure import draw

    try:
        draw(table, level, out)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from None
    echo(f"written: {out}")
