"""The jobs of a trace or a queue, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int64s: TypeAlias = npt.NDArray[np.int64]
Int32s: TypeAlias = npt.NDArray[np.int32]
Bools: TypeAlias = npt.NDArray[np.bool_]
Float64s: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs 0..n-1 in order of submission; a job's index is its name inside the engine.

    ``run_s`` and ``request_s`` are at least 1 and ``run_s`` is at most ``request_s``: a job is ended at its request.
    """

    number: Int64s  # as in the log
    submit_s: Int64s  # ascending, 0 or later
    run_s: Int64s
    request_s: Int64s
    width: Int32s  # processors, 1 or more
    user: Int32s  # 0..n_users-1

    def __len__(self) -> int:
        return len(self.number)

    def only(self, rows: Int64s | Bools) -> Jobs:
        """The jobs ``rows``, in that order, their users numbered again."""
        columns = {name: getattr(self, name)[rows] for name in self.__slots__}
        _, user = np.unique(columns["user"], return_inverse=True)
        return Jobs(**columns | {"user": user.astype(np.int32)})

    @property
    def n_users(self) -> int:
        """Users that submitted at least one job."""
        return int(self.user.max(initial=-1)) + 1
