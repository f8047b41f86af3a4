"""Where results of a calibration are kept: by default where the agent looks for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from calibration.measure.node_session import SessionError
from calibration.measure.refusals import refuse_unfit_place
from foundation.shell.errors import UsageError
from nodectl.calibrated.node_calibration import LIMITS, TABLE
from nodectl.config import Config

STANDARD: Final = Path(Config().calibration)


def out_option(name: str) -> Callable[[Any], Any]:
    """``--out`` of a command that measures; by default the file ``name`` where the agent looks."""
    return click.option(
        "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), default=STANDARD / name, show_default=True,
        help="The result.",
    )  # fmt: skip


def file_argument(name: str = "file") -> Callable[[Any], Any]:
    """The table that a command is about; by default this node's own."""
    return click.argument(name, type=click.Path(path_type=Path), default=STANDARD / TABLE)


def refuse_existing(out: Path, again: bool, *more: Path) -> None:
    """``UsageError`` if a result, or ``more`` of it, is there already; an error if none can be kept there. Makes the
    standard place."""
    if out in more:
        raise UsageError(f"{out}: the table is TOML, and Parquet stands next to it: name it {out.stem}.toml")
    if not again and (there := next((path for path in (out, *more) if path.exists()), None)):
        raise UsageError(f"{there}: is there already: name another, or --again to replace it")
    if out.parent == STANDARD:
        try:
            STANDARD.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SessionError(f"{STANDARD}: cannot be made: {error.strerror}") from None
    refuse_unfit_place(out)


__all__ = ["LIMITS", "STANDARD", "TABLE", "file_argument", "out_option", "refuse_existing"]
