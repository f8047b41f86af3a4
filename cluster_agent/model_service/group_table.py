"""The model that ships: watts of a node by groups of like jobs, from the closest group that has been seen.

A job belongs to eight groups: its user's jobs of this name with just this request, the same with any walltime, down to
all jobs (``LEVELS``). Of each group the table has typical, expected and highest watts of a node, as
``prediction.job_power`` means them. A prediction is one look-up. Means of small groups that are drawn towards those of
wider ones (shrinkage) were no better on the first halves of Eurora's and the generated jobs.

The table is numbers alone: an ``.npz`` of NumPy, read without pickle. The same records give the same bytes.
"""

from __future__ import annotations

import io
import math
import zipfile
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cluster_agent.model_service.job_ring import Records, UInt64s

Float64s: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.intp]

LEVELS: Final = (
    (("user", "text", "shape", "nodes", "request_s"), "user, name, nodes and walltime"),
    (("user", "text", "shape", "nodes"), "user, name and nodes"),
    (("user", "text"), "user and name"),
    (("user", "shape", "nodes"), "user and nodes"),
    (("user",), "user"),
    (("shape", "nodes", "request_s"), "nodes and walltime"),
    (("shape", "nodes"), "nodes"),
    ((), "partition"),
)
"""What the jobs of a group have in common, the closest group first, and the same in words."""

MOST_GROUPS: Final = 1 << 18
"""Ours: groups of a level; those with the newest jobs stay."""

MOST_BYTES: Final = 128 << 20
MOST_NODE_W: Final = 1e6

_MIX: Final = np.uint64(0xD6E8FEB86659FD93)
_HALF: Final = np.uint64(32)


class TableError(ValueError):
    """What is wrong with a table, as a clause."""


def keys_of(records: Records, level: int) -> UInt64s:
    """A word of 64 bits for the group of each record."""
    found = np.full(len(records), level + 1, np.uint64)
    for name in LEVELS[level][0]:
        found ^= records[name].astype(np.uint64)
        found *= _MIX
        found ^= found >> _HALF
    found *= _MIX
    return found


class Kinds(NamedTuple):
    """The distinct jobs of some records, by all that a prediction rests on, and which of them each record is. Users
    submit the same few requests again and again."""

    records: Records
    place: Ints


def kinds_of(records: Records) -> Kinds:
    """By the closest group."""
    _, first, place = np.unique(keys_of(records, 0), return_index=True, return_inverse=True)
    return Kinds(records[first], place)


class Predicted:
    """Watts of a node for each record: typical, expected, highest; the level, and how many jobs that rests on."""

    def __init__(self, count: int) -> None:
        self.watts: Float64s = np.full((count, 3), np.nan)
        self.level = np.full(count, len(LEVELS), np.int8)
        self.jobs = np.zeros(count, np.int64)


class GroupTable:
    """``keys``, ``watts`` and ``jobs`` of each level, sorted by key."""

    def __init__(self, keys: list[UInt64s], watts: list[Float64s], jobs: list[npt.NDArray[np.int64]]) -> None:
        self._keys, self._watts, self._jobs = keys, watts, jobs

    def predict(self, records: Records) -> Predicted:
        """Of the closest group of each."""
        found, left = Predicted(len(records)), np.arange(len(records))
        for level, keys in enumerate(self._keys):
            if not len(left) or not len(keys):
                continue
            wanted = keys_of(records[left], level)
            at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            is_there = keys[at] == wanted
            here, at = left[is_there], at[is_there]
            found.watts[here], found.level[here] = self._watts[level][at], level
            found.jobs[here] = self._jobs[level][at]
            left = left[~is_there]
        return found

    def content(self) -> bytes:
        """The file."""
        arrays = {
            f"{name}{level}": values[level]
            for level in range(len(LEVELS))
            for name, values in (("keys", self._keys), ("watts", self._watts), ("jobs", self._jobs))
        }
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **arrays)
        return file.getvalue()

    @classmethod
    def of_content(cls, content: bytes) -> GroupTable:
        """``TableError`` for anything else than a table of possible watts."""
        arrays = arrays_of(content)
        wanted = {f"{name}{level}" for level in range(len(LEVELS)) for name in ("keys", "watts", "jobs")}
        if set(arrays) != wanted:
            raise TableError("has other arrays than a table of groups")
        levels = range(len(LEVELS))
        made = cls(*([arrays[f"{name}{level}"] for level in levels] for name in ("keys", "watts", "jobs")))
        if problem := next(filter(None, map(made._problem, levels)), ""):
            raise TableError(problem)
        return made

    def _problem(self, level: int) -> str:
        keys, watts, jobs = self._keys[level], self._watts[level], self._jobs[level]
        types = [array.dtype.str for array in (keys, watts, jobs)]
        if types != ["<u8", "<f8", "<i8"] or (keys.ndim, watts.shape) != (1, (len(keys), 3)):
            return "has arrays of another shape than a table of groups"
        if jobs.shape != keys.shape or (keys[1:] <= keys[:-1]).any():
            return "has groups that are not in order"
        if not np.isfinite(watts).all():
            return "predicts what is no number (NaN)"
        if ((watts <= 0) | (watts > MOST_NODE_W)).any() or (watts[:, 2] < watts[:, 0]).any():
            return "predicts watts that cannot be"
        return ""


def arrays_of(content: bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a file of NumPy, by name. ``TableError`` for what is none, or has code in it."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(one.file_size for one in archive.infolist()) > MOST_BYTES:
                raise TableError(f"unpacks to more than {MOST_BYTES >> 20} MiB")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, MemoryError, KeyError) as error:
        if isinstance(error, TableError):
            raise
        what = "has objects, which are code, not numbers" if "allow_pickle" in str(error) else "is no file of NumPy"
        raise TableError(what) from None


def trained(records: Records) -> GroupTable:
    """The table that these records teach, at least one."""
    records = records[np.lexsort((records["job"], records["ended_s"]))]
    watts = records["node_w"].astype(np.float64)
    most = np.maximum(records["most_w"].astype(np.float64), watts)
    logs = np.array([math.log(one) for one in watts.tolist()])  # NumPy's depends on the processor's vector unit
    found = [_level(keys_of(records, level), watts, logs, most) for level in range(len(LEVELS))]
    return GroupTable(*(list(part) for part in zip(*found, strict=True)))


def _level(
    keys: UInt64s, watts: Float64s, logs: Float64s, most: Float64s
) -> tuple[UInt64s, Float64s, npt.NDArray[np.int64]]:
    """The groups of a level, in the order of their keys; at most ``MOST_GROUPS``, those with the newest jobs."""
    groups, place = np.unique(keys, return_inverse=True)
    jobs = np.bincount(place).astype(np.int64)
    typical = np.array([math.exp(one) for one in (np.bincount(place, logs) / jobs).tolist()])
    highest = typical.copy()
    np.maximum.at(highest, place, most)
    found = np.stack([typical, np.bincount(place, watts) / jobs, highest], axis=1)
    if len(groups) <= MOST_GROUPS:
        return groups, found, jobs
    newest = np.zeros(len(groups), np.intp)
    newest[place] = np.arange(len(place))  # the last job of a group counts
    stay = np.sort(np.argpartition(-newest, MOST_GROUPS)[:MOST_GROUPS])
    return groups[stay], found[stay], jobs[stay]
