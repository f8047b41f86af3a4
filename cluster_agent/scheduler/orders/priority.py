"""Priorities of waiting jobs by age, size, fair-share (processor-seconds) and energy fair-share (joules).

Usage decays with a half-life. U is a user's part of what the machine had to give, decayed alike; S is the share that
the user is due. The factor of a user is F = 2^(-(U/S)/damping): 1 without usage, 1/2 at just the share, towards 0
beyond it (SLURM's multifactor plugin; joules: Georgiou, Glesser, Rzadca, Trystram, CCGrid 2015; Glesser, thesis, 2016,
ch. 6). Jobs are charged when they end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from cluster_agent.errors import WrongUseError
from foundation.shell.plain_text import fields_by_line, read_text

WEEK_S: Final = 604800
"""SLURM's half-life of usage, and the highest age that counts."""

COLUMNS: Final = ("user", "share", "efficiency")


class Account(NamedTuple):
    """A user's share, relative to other users'; ``efficiency``: joules per processor-second, 1: as all."""

    share: float = 1.0
    efficiency: float = 1.0


class Priority(msgspec.Struct, frozen=True):
    """The highest weighted sum first, equal ones in order of submission.

    ``period_s``: usage decays at the end of each; None: all the time. ``is_relative``: a user's factor is minus the
    usage over the highest of any user, each over its share, as in the simulation of the thesis; then no ``damping``.
    """

    age: float = 0.0
    size: float = 0.0
    cpu: float = 1.0
    energy: float = 0.0
    half_life_s: float = WEEK_S
    period_s: int | None = None
    oldest_s: int = WEEK_S
    damping: float = 1.0
    is_relative: bool = False
    accounts: Mapping[int, Account] = {}  # by the log's number of the user; others: Account()
    spread: float = 0.0  # efficiencies drawn from 1 - spread to 1 + spread, times those of ``accounts``
    seed: int = 1

    def of_users(self, users: Sequence[int]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Shares, which sum to 1, and joules per processor-second."""
        found = [self.accounts.get(user, Account()) for user in users]
        share = np.array([one.share for one in found], np.float64)
        random = np.random.default_rng(self.seed).uniform(1 - self.spread, 1 + self.spread, len(users))
        return share / share.sum(), np.array([one.efficiency for one in found], np.float64) * random


def with_strangers(priority: Priority) -> Priority:
    """For a table of users with room for more, whose number is -1 until they come: they have no share."""
    return replace(priority, accounts={**priority.accounts, -1: Account(share=1e-300)})


def read_accounts(path: str) -> dict[int, Account]:
    """Lines of ``user,share,efficiency`` after a header of that; ``WrongUseError`` for the first that is wrong."""
    try:
        (_, first), *rows = fields_by_line(read_text(path))
    except OSError as error:
        raise WrongUseError(f"{path}: cannot read the users' shares: {error.strerror}") from None
    header = tuple(word.strip() for word in first)
    if header not in (COLUMNS, COLUMNS[:2]):
        raise WrongUseError(f"{path}:1: the first line must be {','.join(COLUMNS)}, or {','.join(COLUMNS[:2])}")
    accounts: dict[int, Account] = {}
    for number, row in rows:
        if not row:
            continue
        try:
            user, account = int(row[0]), Account(*map(float, row[1:]))
        except (ValueError, TypeError):
            raise WrongUseError(f"{path}:{number}: {','.join(header)} are numbers; this line is not") from None
        if len(row) != len(header) or not all(0 < value < float("inf") for value in account):
            raise WrongUseError(f"{path}:{number}: {len(header)} values are needed, shares and efficiencies above 0")
        if user in accounts:
            raise WrongUseError(f"{path}:{number}: user {user} occurs twice")
        accounts[user] = account
    return accounts
