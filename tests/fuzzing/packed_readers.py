"""Readers of files that are no text: tables in Parquet, and a node's journal.

Parquet is damaged in its values (other types, columns that are missing or twice, numbers that no table has) and in its
bytes. A journal is damaged in what its frames have in them, whose checksums are then right again, and in its bytes.
"""

from __future__ import annotations

import math
import random
import tempfile
import zlib
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from cluster_agent.errors import ClusterError
from cluster_agent.scheduler.power_cap import UNCAPPED
from cluster_agent.workloads import eurora
from cluster_agent.workloads.rte import rte_caps
from foundation.shell.errors import NodectlError
from nodectl.config import Config, GpuSettings, JournalSettings, PolicyChoice
from nodectl.journal import JournalError, open_journal
from nodectl.journal.decide_again import replay
from nodectl.journal.format import HEADER, KEYFRAME, MAGIC, RECORD, frame
from nodectl.loop.agent import Agent
from tests.fuzzing.fuzzer import Reader, sound
from tests.fuzzing.job_readers import NODES, node_jobs
from tests.fuzzing.parsers import bytes_changed, leaves_changed
from tests.fuzzing.site_readers import watts_of
from twin.faults.active import Faults
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

# --- Parquet

type_columns = dict[str, list[Any]]

EURORA: Final[type_columns] = {
    "instance": ["one", "one", "two"], "job": ["1", "2", "3"], "queue": ["debug", "parallel", "debug"],
    "submit": ["2014-03-31 09:18:17"] * 3, "start": ["2014-03-31 13:18:02"] * 3, "end": ["2014-03-31 13:45:01"] * 3,
    "cores": [8, 8, 16], "gpus": [0, 1, 0], "mics": [0, 0, 0], "mem_kb": [14680064, 6291456, 1],
    "walltime_s": [14400, 14400, 60], "nodes": ["7", "49 50", ""], "predicted_power_w": [None, 129.0, 0.0],
}  # fmt: skip
WATTS: Final[type_columns] = {"job": [1, 2], "watts": [30.5, 70.0]}
LOADS: Final[type_columns] = {
    "local_date": ["2011-01-01"] * 3, "local_time": ["00:00", "00:15", "01:00"], "load_mw": [50_000, None, 40_000],
}  # fmt: skip

VALUES: Final[tuple[Sequence[Any], ...]] = (
    (-1, 0, 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)),
    (math.nan, math.inf, -math.inf, 1e308, -0.0, 0.5, -7.5),
    ("", "x", "7", "1e3", "9" * 30, "nan", "\x1b[2J", "\u202e", "2014-03-31", "25:61", "0001-01-01T00:00:00+14:00"),
    (b"", b"\xff\xfe", b"7"), (True, False), (date(1, 1, 1), date(9999, 12, 31), date(2011, 1, 1)),
    (datetime(1, 1, 1), datetime(9999, 12, 31), datetime(2014, 3, 31, 9)), (timedelta(0), timedelta(days=10**6)),
    ([], [1], [None]), ({"a": 1}, {"a": None}), (None,),
)  # fmt: skip
"""Of one type each, since a column has one."""

KEPT: Final = 64
"""Ours: tables of which the bytes are changed; to write one takes as long as to read it."""


def packed(columns: type_columns) -> bytes:
    """As a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pa.BufferOutputStream() as out:
        pq.write_table(pa.table([pa.array(one) for one in columns.values()], list(columns)), out)
        return bytes(out.getvalue().to_pybytes())


class Tables:
    """Damages of one table."""

    def __init__(self, columns: type_columns) -> None:
        self._columns, self._kept = columns, [packed(columns)]

    def __call__(self, rng: random.Random, raw: bytes) -> bytes:
        """Another table, or the bytes of one changed."""
        if rng.random() < 0.3:
            try:
                raw = packed(self._changed(rng))
            except (ValueError, TypeError, OverflowError):  # values of two types
                return raw
            if len(self._kept) < KEPT:
                self._kept.append(raw)
            else:
                self._kept[rng.randrange(KEPT)] = raw
            return raw
        raw = rng.choice(self._kept)
        if rng.random() < 0.5:  # in the footer, which says what is where
            at = max(len(raw) - rng.randrange(9, 900), 0)
            return raw[:at] + bytes([rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))]) + raw[at + 1 :]
        return bytes_changed(rng, raw, raw)

    def _changed(self, rng: random.Random) -> type_columns:
        columns = {name: list(values) for name, values in self._columns.items()}
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            name, kind = rng.choice(list(columns)), rng.randrange(10)
            if kind < 4:
                columns[name][rng.randrange(len(columns[name]))] = rng.choice(rng.choice(VALUES[:3]))
            elif kind < 8:
                of_type = rng.choice(VALUES)
                columns[name] = [rng.choice(of_type) for _ in columns[name]]
            elif kind == 8 and len(columns) > 1:
                del columns[name]
            elif kind == 9:
                rows = rng.choice((0, 1, 1))
                columns = {one: values[:rows] or [None] * rows for one, values in columns.items()}
            if not all(columns.values()):
                break
        return columns


def _eurora(path: Path) -> Any:
    return node_jobs(eurora.read_jobs(str(path), "one").on(NODES, UNCAPPED))


def _loads(path: Path) -> Any:
    caps = rte_caps(f"rte:{path}:begin=2011-01-01,days=1,least_w=1000,most_w=2000")
    sound(all(0 <= one.from_s < one.to_s and 1000 <= one.watts <= 2000 for one in caps), "no cap")
    return [[one.from_s, one.to_s, one.watts] for one in caps]


# --- journals


@cache
def _segment() -> bytes:
    """A journal of a few ticks of an agent on an emulated node."""
    machine = load_machine("taurus")
    twin = Twin(machine, load_workload("hpl", machine, seed=1), seed=1)
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            mode="optimize", state_dir=folder, gpu_policy=PolicyChoice("none"), gpu=GpuSettings(0),
            journal=JournalSettings(max_bytes=1 << 20),
        )  # fmt: skip
        with InProcess(twin, Faults(twin, [])) as node, Agent.open(node.ports, config) as agent:
            agent.run(until_ns=node.ports.clock.now_ns() + 250_000_000)
        (path,) = config.journal_dir.glob("*.seg")
        return path.read_bytes()


def frames(raw: bytes) -> list[tuple[int, bytes]]:
    """Kind and payload of each; a keyframe's is unpacked."""
    found, at = [], len(MAGIC)
    while at < len(raw):
        length, _, kind = HEADER.unpack_from(raw, at)
        payload = raw[at + HEADER.size : at + HEADER.size + length]
        found.append((kind, zlib.decompress(payload) if kind == KEYFRAME else payload))
        at += HEADER.size + length
    return found


def _journal_damaged(rng: random.Random, raw: bytes) -> bytes:
    if rng.random() < 0.3:
        return bytes_changed(rng, raw, raw)
    parts = frames(raw)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(parts))
        kind, payload = parts[at]
        draw = rng.randrange(8)
        if draw == 0:
            del parts[at]
        elif draw == 1:
            parts.insert(rng.randrange(len(parts)), parts[at])
        elif draw == 2:
            parts[at] = rng.choice((KEYFRAME, RECORD, 0, 255)), payload
        elif draw == 3:
            parts[at] = kind, bytes_changed(rng, payload, payload)
        elif draw == 4 and kind == RECORD:
            parts[at] = kind, _row_changed(rng, payload)
        else:
            parts[at] = kind, leaves_changed(rng, payload)
        if not parts:
            break
    return MAGIC + b"".join(
        frame(kind, zlib.compress(payload, 1) if kind == KEYFRAME else payload) for kind, payload in parts
    )


def _row_changed(rng: random.Random, payload: bytes) -> bytes:
    """The numbers of a tick changed, as a writer that counts wrongly would."""
    try:
        record = msgspec.msgpack.decode(payload)
        row = zlib.decompress(record[4], -zlib.MAX_WBITS)
        row = rng.choice((bytes_changed(rng, row, row), row[: rng.randrange(3)], row + bytes(rng.choice((1, 1 << 20)))))
        deflate = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
        record[4] = deflate.compress(row) + deflate.flush()
        return msgspec.msgpack.encode(record)
    except (ValueError, TypeError, LookupError, RecursionError, zlib.error, msgspec.MsgspecError):  # damaged before
        return payload


def _journal(path: Path) -> Any:
    journal = open_journal(path)
    rows = [
        [one.sequence, one.raw.time_ns, one.raw.counters.tolist(), one.raw.energy_uj.tolist(), one.has_decided]
        for one in journal
    ]
    sound(all(one.isprintable() and str(path) in one and len(one) < 1000 for one in journal.problems), "odd problems")
    if journal.problems and not rows:
        raise JournalError(journal.problems[0])
    return [rows, journal.loss.n_bytes, journal.loss.is_damage]


def _decided_again(path: Path) -> Any:
    report = replay(open_journal(path))
    if report.problems and not report.records:
        raise JournalError(report.problems[0])
    return [report.records, report.decided, report.differing, len(report.problems)]


def of_packed() -> dict[str, Reader]:
    """By name."""
    trouble: tuple[type[BaseException], ...] = (ClusterError,)
    tables: tuple[tuple[str, type_columns, Callable[[Path], Any]], ...] = (
        ("eurora jobs in Parquet", EURORA, _eurora),
        ("job watts in Parquet", WATTS, watts_of),
        ("loads in Parquet", LOADS, _loads),
    )
    found = {
        name: Reader((packed(columns),), read, trouble, damage=Tables(columns), ending=".parquet")
        for name, columns, read in tables
    }
    journal = _segment()
    return found | {
        "journal": Reader((journal,), _journal, (NodectlError,), damage=_journal_damaged, ending=".seg"),
        "journal decided again": Reader(
            (journal,), _decided_again, (NodectlError,), damage=_journal_damaged, ending=".seg", cost=10
        ),
    }
