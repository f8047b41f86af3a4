"""The errors of the cluster side: what a user can fix, in one line that says what, where and how."""

from __future__ import annotations

from collections.abc import Iterable

from foundation.shell.errors import NodectlError, nearest, types_in_words


class ClusterError(NodectlError):
    """The run failed: a trace that cannot be read, an output that cannot be written. Exit status 1."""


class StoreError(ClusterError):
    """The cluster agent's store cannot be read or written: its disk is full or fails, or it is damaged."""


class StepError(ClusterError):
    """A stepped world cannot do that: an action that cannot be, or a world that is over or closed."""


class SchedulerError(ClusterError):
    """A scheduler in another process has answered what cannot be, too late, or not at all."""


class StoppedError(ClusterError):
    """The user has stopped it (Ctrl-C). Exit status 130, as shells use it."""

    exit_status = 130


class WrongUseError(ClusterError):
    """The command line is wrong: a policy, parameter or machine that does not exist. Exit status 2."""

    exit_status = 2


def no_such_node(name: str, known: Iterable[str]) -> WrongUseError:
    """The error for a node name that does not exist."""
    return WrongUseError(f"no node is called {name!r}{nearest(name, known)} (`clusterctl nodes` lists them)")


def without_types(message: str) -> str:
    """A decoder's message without the names of Python's types: ``expected a number, got text``."""
    message = message.replace("Object missing required field", "Missing key")
    message = message.replace("Object contains unknown field", "Unknown key")
    return types_in_words(message)
