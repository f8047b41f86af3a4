"""``nodectl calibrate show``, ``diff``, ``check``, ``export`` and ``import``: what can be done with a table."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Final

import click

from calibration.measure.refusals import refuse_unfit_place
from calibration.table import table_file
from calibration.table.finished_table import LASTS_DAYS
from calibration.table.node_identity import differences, identity
from calibration.table.table_exchange import csv_of, machine_part, table_from_csv
from calibration.table.table_report import diff_lines, show_lines
from nodectl.shell.errors import UsageError
from nodectl.shell.plain_text import echo, echo_block
from pmu.node import discover
from pmu.system import system_ports

_FILE: Final = click.argument("file", type=click.Path(path_type=Path))


@click.command()
@_FILE
@click.option("--all", "is_all", is_flag=True, help="Every clock, in place of a few of each kernel.")
def show(file: Path, is_all: bool) -> None:
    """Print a table: where it is from, watts and speed with their intervals, the clocks of fewest joules."""
    echo_block("\n".join(show_lines(table_file.read_table(file), is_all)))


@click.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
def diff(first: Path, second: Path) -> int:
    """Compare two tables: where they differ by more than both intervals. Exit status 1 if they do anywhere."""
    lines, is_different = diff_lines(table_file.read_table(first), table_file.read_table(second))
    echo_block("\n".join(lines))
    return 1 if is_different else 0


@click.command()
@_FILE
def check(file: Path) -> int:
    """Does a table apply to this node? Whole, of this machine, and not expired. Exit status 1 if not."""
    table = table_file.read_table(file)
    ports = system_ports()
    wrong, remarks = differences(table.identity, identity(ports, discover(ports)[0]))
    if table_file.is_expired(table, datetime.datetime.now(datetime.UTC)):
        wrong.append(f"expired at {table.expires_at}: measure again")
    for line in wrong:
        echo(f"{file}: {line}")
    for line in remarks:
        echo(f"{file}: remark: {line}")
    if not wrong:
        echo(f"{file}: applies to this node until {table.expires_at}")
    return 1 if wrong else 0


@click.command()
@_FILE
@click.option("--csv", "as_csv", is_flag=True, help="The rows as CSV, in place of a machine file.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="To this file, in place of the terminal.")
def export(file: Path, as_csv: bool, output: Path | None) -> None:
    """The part of an emulated node's machine file (TOML) that a table decides, or its rows as CSV."""
    table = table_file.read_table(file)
    text = csv_of(table) if as_csv else machine_part(table)
    if output:
        table_file.write_whole(output, text)
    else:
        echo_block(text.rstrip("\n"))


@click.command("import")
@click.argument("csv_file", metavar="CSV", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The table.")
def import_(csv_file: Path, output: Path) -> None:
    """Make a table from the CSV of an external sweep of this node."""
    if output.exists():
        raise UsageError(f"{output}: is there already: name another")
    refuse_unfit_place(output)
    ports = system_ports()
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    who = identity(ports, discover(ports)[0])
    expires = now + datetime.timedelta(days=LASTS_DAYS)
    table_file.write_table(output, table_from_csv(csv_file, who, now.isoformat(), expires.isoformat()))
    echo(f"written: {output}")
