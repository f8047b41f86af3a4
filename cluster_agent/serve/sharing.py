"""The seam to whoever says which node needs which watts."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from cluster_agent.budget.ledger import Ledger, type_mw


class Sharing(Protocol):
    """Caps for nodes, and the reason for each."""

    name: str

    def share(self, ledger: Ledger, names: list[str], available_mw: int) -> type_mw:
        """A cap in mW for each node, within its MOP and TDP; their sum at most ``available_mw``, which is at least the
        sum of the MOPs."""

    def why(self, name: str) -> str:
        """Why the node had its cap at the last ``share``."""


class EvenShare:
    """The same part of what lies between MOP and TDP for every node, whether it works or idles."""

    name = "even"

    def __init__(self) -> None:
        self._part = 1.0

    def share(self, ledger: Ledger, names: list[str], available_mw: int) -> type_mw:
        """Rounded down to whole mW."""
        declared = [ledger.accounts[name].declaration for name in names]
        low = np.array([one.mop_mw for one in declared], np.int64)
        room = np.array([one.tdp_mw for one in declared], np.int64) - low
        spread = int(room.sum())
        self._part = min((available_mw - int(low.sum())) / spread, 1.0) if spread else 1.0
        caps: type_mw = low + np.floor(room * self._part).astype(np.int64)
        return caps

    def why(self, name: str) -> str:
        """The same for all."""
        return f"even: every node gets {100 * self._part:.1f} % of what lies between its MOP and its TDP"
