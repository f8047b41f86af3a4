"""``nodectl calibrate show``, ``diff``, ``check``, ``export`` and ``import``: what can be done with a table."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path

import click

from calibration.commands.result_files import TABLE, file_argument, out_option, refuse_existing
from calibration.gpu_table.gpu_table import gpu_lines, is_gpu_table, read_gpu_table
from calibration.table import table_file
from calibration.table.table_exchange import csv_of, machine_part, table_from_csv
from calibration.table.table_report import diff_lines, show_lines
from foundation.sealed_file import sealed_text, write_whole
from foundation.shell.plain_text import echo, echo_block
from nodectl.calibrated.node_calibration import expiry, is_expired, read_head
from nodectl.calibrated.node_identity import differences, identity
from pmu.node import discover
from pmu.system import system_ports


@click.command()
@file_argument()
@click.option("--all", "is_all", is_flag=True, help="Every clock, in place of a few of each kernel.")
def show(file: Path, is_all: bool) -> None:
    """Print a table: where it is from, watts and speed with their intervals, the clocks of fewest joules."""
    if is_gpu_table(file):
        echo_block("\n".join(gpu_lines(read_gpu_table(file))))
        return
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
@file_argument()
def check(file: Path) -> int:
    """Does a table, or a file of limits, apply to this node? Whole, of it, not expired. Exit status 1 if not."""
    head = read_head(file)
    if "rows" in tomllib.loads(sealed_text(file)):
        table_file.read_table(file)
    ports = system_ports()
    wrong, remarks = differences(head.identity, identity(ports, discover(ports)[0]))
    if is_expired(head.expires_at, datetime.datetime.now(datetime.UTC)):
        wrong.append(f"expired at {head.expires_at}: measure again")
    for line in wrong:
        echo(f"{file}: {line}")
    for line in remarks:
        echo(f"{file}: remark: {line}")
    if not wrong:
        echo(f"{file}: applies to this node until {head.expires_at}")
    return 1 if wrong else 0


@click.command()
@file_argument()
@click.option("--csv", "as_csv", is_flag=True, help="The rows as CSV, in place of a machine file.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="To this file, in place of the terminal.")
def export(file: Path, as_csv: bool, out: Path | None) -> None:
    """The part of an emulated node's machine file (TOML) that a table decides, or its rows as CSV."""
    table = table_file.read_table(file)
    text = csv_of(table) if as_csv else machine_part(table)
    if out:
        write_whole(out, text)
    else:
        echo_block(text.rstrip("\n"))


@click.command("import")
@click.argument("csv_file", metavar="CSV", type=click.Path(path_type=Path))
@out_option(TABLE)
def import_(csv_file: Path, out: Path) -> None:
    """Make a table from the CSV of an external sweep of this node."""
    refuse_existing(out, again=False)
    ports = system_ports()
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    who = identity(ports, discover(ports)[0])
    table_file.write_table(out, table_from_csv(csv_file, who, now.isoformat(), expiry(now)))
    echo(f"written: {out}")
