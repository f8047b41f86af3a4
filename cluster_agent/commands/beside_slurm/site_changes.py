"""What the commands next to another manager share: showing and writing changes, and following its queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import click

from cluster_agent.errors import ClusterError
from cluster_agent.fabric.ask import Link, Place
from cluster_agent.slurm.follow import Follower
from foundation.shell.plain_text import echo, echo_block, say

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


class Change(Protocol):
    """Of a file, or of something else that can be shown as a diff."""

    def diff(self) -> str:
        """As ``diff -u`` prints it."""


def say_lacking(lines: Sequence[str]) -> None:
    """What a site lacks, one line each; then the exit status is 1."""
    echo(*lines or ["nothing is lacking"])
    if lines:
        click.get_current_context().exit(1)


def agreed(changes: Sequence[Change], is_sure: bool) -> bool:
    """Show the diff and ask; False: there is nothing to change. ``ClusterError`` if the answer is no."""
    if not changes:
        echo("nothing to change")
        return False
    echo_block("".join(change.diff() for change in changes).rstrip("\n"))
    if not is_sure and not click.confirm("Write this?"):
        raise ClusterError("nothing was written")
    return True


def place_of_hook(place: Place) -> tuple[str, ...]:
    """The hook's options for this cluster agent."""
    if isinstance(place, Link):
        return "--socket", place.url, "--key", str(place.key), "--server", place.server
    return "--socket", str(place)


def repeat(
    follower: Follower, turns: Sequence[Callable[[], None]], way: Callable[[], str], every_s: float, once: bool
) -> None:
    """Compare again and again, and then do the ``turns`` where all is well; ``way`` is said when it changes."""
    said = ""
    while True:
        began_s = time.monotonic()
        is_well = follower.turn()
        for turn in turns if is_well else ():
            turn()
        if is_well and way() != said:
            said = way()
            say(said)
        if once:
            click.get_current_context().exit(not is_well)
        time.sleep(max(every_s - (time.monotonic() - began_s), 0.0))
