"""``nodectl phases``: what is kept of programs that ran on this node's GPUs, and would be used for the next run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from foundation.phase_files import PhaseFiles, Remembered
from foundation.shell.errors import NodectlError, nearest
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render
from foundation.wire.phase_messages import KeptPhase
from nodectl.commands import config_option, state_dir_option
from nodectl.commands.run import configure

UNNAMED = "(no name)"


@click.group()
@config_option
@state_dir_option
@click.pass_context
def phases(context: click.Context, file: Path | None, state_dir: str | None) -> None:
    """Phases of programs on GPUs that earlier runs have kept: the next run of the same program begins with them."""
    given: dict[tuple[str, ...], tuple[str, Any]] = {("state_dir",): ("--state-dir", state_dir)} if state_dir else {}
    context.obj = PhaseFiles.below(configure(file, given).state_dir)


@phases.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_phases(files: PhaseFiles, as_json: bool) -> int:
    """List the programs that are known. Exit status 1 if a file cannot be used."""
    found, lines = files.all()
    if as_json:
        echo_block(json_text({"programs": found, "not_used": lines}, indent=2))
        return 1 if lines else 0
    if found:
        rows = [(one.key.digest, one.key.card, *_counts(one), one.key.program or UNNAMED) for one in found]
        echo_block(render(("id", "card", "phases", "runs", "last run", "program"), rows))
    else:
        echo(f"no phases are kept below {files.folder}")
    for line in lines:
        echo(f"not used: {line}", to_stderr=True)
    return 1 if lines else 0


@phases.command()
@click.argument("program")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(files: PhaseFiles, program: str, as_json: bool) -> None:
    """Show the phases of PROGRAM, an id or a name of `nodectl phases list`."""
    found = _found(files, program)
    if as_json:
        echo_block(json_text(found, indent=2))
        return
    for one in found:
        key = one.key
        echo(f"{key.digest}  {key.program or UNNAMED} on {key.card}, {key.limit_w:g} W, driver {key.driver or '-'}")
        for number, table in enumerate(one.tables, 1):
            echo(f"  program {number} of {len(one.tables)}: {_runs(table.runs)}, last {table.used_at}")
            rows = [row for place, phase in enumerate(table.phases, 1) for row in _rows(place, phase)]
            echo_block(render(("phase", "time", "clock", "board", "memory active", "blocks"), rows))


@phases.command()
@click.argument("program", required=False)
@click.option("--all", "every", is_flag=True, help="Of every program, and files that cannot be used.")
@click.pass_obj
def forget(files: PhaseFiles, program: str | None, every: bool) -> None:
    """Delete what is kept of PROGRAM, an id or a name of `nodectl phases list`.

    The next run measures it again. A run that lasts now keeps what it has when it ends.
    """
    if (program is None) == (not every):
        raise click.UsageError("name a program, or --all")
    doomed = files.paths() if program is None else [files.path(one.key) for one in _found(files, program)]
    for path in doomed:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise NodectlError(f"{path}: cannot be deleted: {error.strerror}") from None
    echo(f"forgot {len(doomed)} program{'s' if len(doomed) != 1 else ''}")


def _found(files: PhaseFiles, program: str) -> list[Remembered]:
    every, _ = files.all()
    found = [one for one in every if program in (one.key.digest, one.key.program or UNNAMED)]
    if not found:
        known = [name for one in every for name in (one.key.digest, one.key.program)]
        raise NodectlError(f"nothing is kept of {program!r}{nearest(program, known)}")
    return found


def _counts(one: Remembered) -> tuple[str, str, str]:
    last = one.tables[0]
    return (
        "+".join(str(len(table.phases)) for table in one.tables),
        "+".join(str(table.runs) for table in one.tables),
        last.used_at[:16].replace("T", " "),
    )


def _rows(place: int, phase: KeptPhase) -> list[tuple[str, ...]]:
    columns = zip(phase.clocks_mhz, phase.watts, phase.traffic, phase.blocks, strict=True)
    return [
        (f"{place}" if not row else "", f"{phase.share:.0%}" if not row else "", f"{mhz} MHz", f"{watts:.0f} W",
         f"{traffic:.1%}", f"{blocks:.0f}")
        for row, (mhz, watts, traffic, blocks) in enumerate(columns)
    ]  # fmt: skip


def _runs(count: int) -> str:
    return f"{count} run{'s' if count != 1 else ''}"
