"""Everything that takes bytes from others, with bytes that are nearly right: a fast loop in one process.

An input is a valid message with some leaves replaced by values that are hard to take (NaN, 2**63, lone surrogates, deep
lists), or with some bytes changed. A parser returns something, or refuses in its own way; any other exception is a
finding, and so is a message that is accepted and cannot be stored, sent on or shown: a float that is not finite, a
number of more than 64 bits.

    python -m tests.fuzzing.parsers 10000000|60s [SEED]     # so many inputs, or for so long
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from cluster_agent.errors import ClusterError
from cluster_agent.fabric.allowed import Allowed
from cluster_agent.fabric.people import Caller, Request, answer, pack_request
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.jobs.power_switching import Switched
from cluster_agent.serve import people_protocol
from cluster_agent.serve.config import read_settings
from cluster_agent.store.commit_log import CommitLog
from cluster_agent.store.records import TABLES, checksum, problem_of
from foundation.shell.errors import NodectlError
from foundation.shell.settings import read_toml
from foundation.wire import phase_messages
from foundation.wire.job_messages import (
    DOWN,
    KINDS,
    UP,
    JobForget,
    JobPart,
    JobQuery,
    JobSignal,
    JobStart,
    NodeJobs,
    read_job_message,
)
from foundation.wire.phase_messages import (
    Card,
    KeptPhase,
    PhasesForget,
    PhasesForgotten,
    PhasesFound,
    PhasesKept,
    PhasesWanted,
    Table,
    read_phase_message,
)
from foundation.wire.power_messages import Declaration, Grant, Report, WireError, pack, read_grant, read_report, unpack
from nodectl.config import build_config
from nodectl.write.saves import SaveError, read_save
from tests.fuzzing.goal import Goal

HARD: Final[tuple[Any, ...]] = (
    math.nan, math.inf, -math.inf, 1e308, -0.0, 1e-320, 0, -1, 1, 255, 256, -65, 2**31, 2**53, 2**62 - 1, 2**62,
    2**63 - 1, -(2**63), 2**64 - 1, True, False, None, "", "x" * 97, "x" * 301, "\x1b[2J\r\n\x00", "\u202e", "é" * 48,
    b"", b"\xff\x00", [], {}, [[]], {"": {}}, [None] * 65, ["x"] * 17, "lost-0", "n0", "../..", "%n%s", "NaN", "1e999",
)  # fmt: skip
"""Leaves that are hard to take."""

HARD_TOML: Final = (
    b"nan", b"inf", b"-inf", b"-1", b"1e308", b"9" * 30, b"true", b'""', b'"\\u0000\\u001b"', b"[[[]]]", b"{}", b"''",
    b"1979-05-27", b"0x7fffffffffffffff", b"{ a = 1 }", b'"x"',
)  # fmt: skip

A_PART: Final = 10_000
"""Ours: inputs between two looks at the clock."""

DECLARED: Final = Declaration(500_000, 100_000, 150_000, 450_000, "os", 500, 8000)


@dataclass(frozen=True, slots=True)
class Parser:
    """``seeds``: valid inputs. ``parse`` raises what is in ``refusals``, or returns what it took. ``is_text``: not
    MessagePack."""

    seeds: tuple[bytes, ...]
    parse: Callable[[bytes], Any]
    refusals: tuple[type[BaseException], ...]
    is_text: bool = False


def _report(node: str = "n0") -> Report:
    return Report(node, "boot-1", 10**15, 3, 3, 7, 400_000, "seen", 250_000, DECLARED, False, 10**9, 400_000, "memory",
                  "measured", "measured", "yes", 10**6, 10**12)  # fmt: skip


def _jobs() -> NodeJobs:
    parts = [JobPart(1, 1, "running", started_s=1e9), JobPart(2, 3, "ended", -9, "told", 1e9, 1e9 + 5, "x", 0.5)]
    return NodeJobs("n0", "boot-1", parts, "twin-workload", ["hpl:", "stream"])


def _up(frame: bytes) -> Any:
    envelope = unpack(frame, {**UP, **phase_messages.UP})
    if envelope.kind in KINDS:
        return read_job_message(envelope)
    if envelope.kind in phase_messages.KINDS_UP:
        return read_phase_message(envelope)
    return read_report(envelope)


def _down(frame: bytes) -> Any:
    envelope = unpack(frame, {**DOWN, **phase_messages.DOWN})
    if envelope.kind in KINDS:
        return read_job_message(envelope)
    if envelope.kind in phase_messages.KINDS_DOWN:
        return read_phase_message(envelope)
    return read_grant(envelope)


def _requests() -> list[Request[Any]]:
    made = people_protocol
    return [
        made.ListNodes(), made.ListNodeChanges(1, 2, 3), made.ExplainCap("n0"), made.ForgetNode("n0", True),
        made.ShowBudget(),
        made.ListBudgetChanges(), made.SetBudget(900.0), made.SetSchedule([(1e9, 5_000), (2e9, 6_000)], "a.csv"),
        made.LowerBudget(1.5, "why"),
        made.SwitchRules("night", True),
        made.Submit(["a", "b"], 60, "/", env={"A": "b"}), made.ListJobs(True, ["done"], "alice", 5), made.ShowJob(7),
        made.CountJobs(), made.ExportState(), made.ExportReplay(), made.Cancel([7, 8]),
        made.Requeue([7]), made.Drain("n0", "why"), made.Resume("n0"),
        made.SwitchPower("n0", True),
        made.NotifyStart("a7", ["n0"], "memory", "n[1-2]", "hpc", 1_795_909_975, 1, "alice", "a title"),
        made.NotifyEnd("a7", "hpc", 1_795_909_975, 1),
        made.ListForeign(),
        made.ListJoules(5.0, "alice"),
    ]  # fmt: skip


def _people(frame: bytes) -> Any:
    """The answer must be one that can be sent, whatever was requested."""
    taken: list[Any] = []
    handlers = {type(one): lambda _, request: taken.append(request) for one in _REQUESTS}
    answered = answer(handlers, Caller(0, "root", "admin"), frame)
    msgspec.msgpack.encode(answered)
    return taken


_REQUESTS: Final = _requests()


def _rows() -> dict[str, tuple[Any, ...]]:
    spec = JobSpec(["a"], 60, "/")
    job = Job(5, 1000, "alice", spec, 1e9, "running", 1, ["n0"], 1e9)
    switched = Switched(name="n0", state="off", since_s=1e9, tried_s=1e9)
    return {
        "owner": (1, 7, "boot-1"),
        "member": (3, "n3", msgspec.json.encode(DECLARED)),
        "count": (0, b"[100000,-1,450000]"),
        "budget": (1, 9_000_000, b"[[1e9,5000000]]"),
        "change": (2, 1e9, "alice", "set 900 W by hand"),
        "job": (5, 1000, "running", None, msgspec.json.encode(job)),
        "drained_node": ("n0", "why", 0),
        "node_power": ("n0", msgspec.json.encode(switched)),
    }


def _row(text: bytes) -> Any:
    """A row with a checksum that is right, so that only its meaning is judged."""
    try:
        table, *values = msgspec.msgpack.decode(text, type=list[Any])
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if not isinstance(table, str) or table not in TABLES or len(values) != len(TABLES[table].columns):
        return None
    if not all(one is None or isinstance(one, int | float | str | bytes) for one in values):
        return None  # SQLite has nothing else
    found = checksum(table, *values)
    if problem_of(table, (*values, found)):
        return None
    job = msgspec.json.decode(values[-1], type=Job) if table == "job" else None
    return [job, *(one for one in values if not isinstance(one, bytes))]


class _Files:
    """Parsers of files get a file."""

    def __init__(self) -> None:
        self._at = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.path = Path(self._at.name) / "input"

    def save(self, text: bytes) -> Any:
        self.path.write_bytes(_with_checksums(text))
        return read_save(str(self.path)).problems

    def commits(self, text: bytes) -> Any:
        Path(f"{self.path}-log").write_bytes(_with_checksums(text))
        return list(CommitLog(self.path).read().rows.items())

    def allowed(self, text: bytes) -> Any:
        (self.path.parent / "allowed").write_bytes(text)
        return [(one.role, one.name) for one in Allowed(self.path.parent).entries()]

    def node(self, text: bytes) -> Any:
        self.path.write_bytes(text)
        settings = read_toml(self.path)[1]
        return build_config(settings, lambda key: f"{self.path}: {'.'.join(key)}") and None

    def cluster(self, text: bytes) -> Any:
        self.path.write_bytes(text)
        return read_settings(self.path) and None


def _with_checksums(text: bytes) -> bytes:
    """Each line with a checksum that is right, so that its meaning is reached."""
    return b"".join(b"%08x %s\n" % (zlib.crc32(line), line) for line in text.split(b"\n") if line)


SAVE: Final = (
    b'{"kind":"capture","v":1,"boot":"b","knob":"cpu/policy0/max_khz","value":"3200000"}\n'
    b'{"kind":"wrote","v":1,"boot":"b","values":{"cpu/policy0/max_khz":1200000}}\n'
    b'{"kind":"hold","v":1,"boot":"b","values":{"cpu/policy0/max_khz":1000000}}\n'
    b'{"kind":"restored","v":1,"boot":"b","knobs":["cpu/policy0/max_khz"]}'
)
COMMITS: Final = b"\n".join(
    msgspec.json.encode(one)
    for one in (
        (4, ("from", 1, 1, 0, 7)), (4, ("drained_node", "n0", "fan", 0)), (5, ("change", 1, 1e9, "root", "set 9 W")),
        (6, ("budget", 1, 9_000_000, [(1e9, 5_000_000)]), ("member", 0, "n0", DECLARED)), (7, ("drained_node", "n0")),
    )
)  # fmt: skip
NODE: Final = (
    b'mode = "optimize"\nstate_dir = "n16"\n[caps]\nrest_w = 60.0\n[cluster]\nurl = "tcp://127.0.0.1:7410"\nkey = "k"\n'
    b"tdp_w = 378.0\nmop_w = 223.0\nsafe_w = 300.0\nboot_w = 378.0\njobs = true\n"
)
CLUSTER: Final = (
    b'listen = "tcp://127.0.0.1:7410"\nkeys = "keys"\nstore = "cluster.db"\nmode = "cap"\nsharer = "fspc"\n'
    b'[budget]\nw = 4536.0\n[nodes]\ntdp_w = 378.0\nlease_s = 10.0\n[jobs]\npolicy = "easy"\n'
    b'[jobs.power]\noff_command = "off %N"\non_command = "on %N"\n'
)


def parsers() -> dict[str, tuple[int, Parser]]:
    """By name: how often of a thousand, since files are slower than frames, and the parser."""
    files = _Files()
    start = JobStart(1, 1, 0, ["a"], "", "/", "o", "", {"A": "b"}, 60, 30, "", "", 0, ["n0", "n1"])
    downs = (
        Grant("n0", 3, "boot-1", 8, 300_000, 10**15, 10**10),
        start,
        JobSignal(1, 1, 15),
        JobForget(1, 1),
        JobQuery(),
    )
    kinds = ("grant", "job-start", "job-signal", "job-forget", "job-query")
    jobs = tuple(pack(kind, one, 3) for kind, one in zip(kinds, downs, strict=True))
    card = Card("A100", "550", 400.0)
    phase = KeptPhase((1410, 1095), (40.0, 9.0), (0.6, 0.5), (330.0, 210.0), 0.9, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.7)
    table = Table((phase,), 3, "2026-12-01T00:00:00+00:00", "n1")
    up = (PhasesWanted("n0", 7, 1, [card]), PhasesKept("n0", 7, 1, card, table), PhasesForgotten("n0", 3))
    down = (PhasesFound(7, 1, [(card, table)]), PhasesForget(3, ["0123456789abcdef"]))
    phases_up, phases_down = (
        tuple(pack(phase_messages.kind_of(one), one, 3) for one in messages) for messages in (up, down)
    )
    return {
        "from nodes": (
            400,
            Parser((pack("report", _report(), 3), pack("jobs", _jobs(), 3), *phases_up), _up, (WireError,)),
        ),
        "to nodes": (250, Parser((*jobs, *phases_down), _down, (WireError,))),
        "people": (189, Parser(tuple(msgspec.msgpack.encode(pack_request(one)) for one in _REQUESTS), _people, ())),
        "store": (140, Parser(tuple(msgspec.msgpack.encode((t, *row)) for t, row in _rows().items()), _row, ())),
        "saves": (8, Parser((SAVE,), files.save, (SaveError,), is_text=True)),
        "log": (8, Parser((COMMITS,), files.commits, (), is_text=True)),
        "allowed": (
            3,
            Parser((b"node n0 " + b"x" * 40 + b"\nadmin a " + b"y" * 40,), files.allowed, (ClusterError,), True),
        ),
        "node settings": (1, Parser((NODE,), files.node, (NodectlError,), is_text=True)),
        "cluster settings": (1, Parser((CLUSTER,), files.cluster, (NodectlError,), is_text=True)),
    }


def run(inputs: int, seed: int, only: Mapping[str, tuple[int, Parser]] | None = None) -> tuple[Counter[str], list[str]]:
    """Feed so many inputs; returns how many went where, and what was found."""
    rng = random.Random(seed)
    given = only if only is not None else parsers()
    names, weights = list(given), [weight for weight, _ in given.values()]
    went: Counter[str] = Counter()
    found: dict[str, str] = {}
    for name in rng.choices(names, weights, k=inputs):
        parser = given[name][1]
        text = _input(rng, parser)
        problem = problem_with(parser, text)
        went[f"{name}: {'taken' if problem == 'taken' else 'refused' if problem == '' else 'FOUND'}"] += 1
        if problem not in ("", "taken"):
            found.setdefault(f"{name}: {problem}", f"{name}: {problem}: {text!r}")
    return went, list(found.values())


def problem_with(parser: Parser, text: bytes) -> str:
    """What is wrong with what the parser does; "taken" or "" if nothing is."""
    try:
        taken = parser.parse(text)
    except parser.refusals as error:
        lines = str(error).splitlines()
        return "" if len(lines) == 1 and lines[0].isprintable() else f"refused in other than one plain line: {error!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    try:
        msgspec.json.encode(taken)
        if not is_finite(msgspec.to_builtins(taken)):
            return "takes a number that is none"
    except Exception as error:
        return f"takes what cannot be stored: {type(error).__name__}: {error}"[:200]
    return "taken" if taken else ""


def is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(is_finite(one) for one in value.values())
    if isinstance(value, list | tuple):
        return all(is_finite(one) for one in value)
    return True


# --- inputs


def _input(rng: random.Random, parser: Parser) -> bytes:
    text = rng.choice(parser.seeds)
    if rng.random() < 0.7:
        text = _line_changed(rng, text) if parser.is_text else leaves_changed(rng, text)
    if rng.random() < 0.4:
        text = bytes_changed(rng, text, rng.choice(parser.seeds))
    return text


def bytes_changed(rng: random.Random, text: bytes, other: bytes) -> bytes:
    raw = bytearray(text)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(raw) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(raw):
            raw[at] = rng.choice((0, 0x7F, 0x80, 0xC0, 0xCA, 0xCB, 0xD9, 0xDD, 0xDF, 0xFF, rng.randrange(256)))
        elif kind == 2:
            del raw[at:]
        elif kind == 3:
            del raw[at : at + rng.randrange(1, 9)]
        elif kind == 4 and other:
            raw[at:at] = other[rng.randrange(len(other)) :][: rng.randrange(1, 40)]
        else:
            raw[at:at] = rng.choice(
                (b"\x91" * 3000, b"[" * 3000, b"\x00", b"\xed\xa0\x80", b"nan", b"1e999", b"\x1b[31m")
            )
        if not raw:
            break
    return bytes(raw)


def leaves_changed(rng: random.Random, text: bytes) -> bytes:
    """The MessagePack with some leaves replaced by what is hard to take."""
    try:
        value = msgspec.msgpack.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return text
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        value = _with_a_leaf_changed(rng, value)
    try:
        return msgspec.msgpack.encode(value)
    except (ValueError, OverflowError, TypeError, RecursionError, msgspec.MsgspecError):
        return text


def _with_a_leaf_changed(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bytes) and value[:1] in (b"{", b"["):  # JSON in a row of the store
        return json_changed(rng, value)
    if isinstance(value, dict) and value and rng.random() < 0.97:
        key = rng.choice(list(value))
        if rng.random() < 0.05:
            return {**{k: v for k, v in value.items() if k != key}, rng.choice(("", "x", "\x1b")): 1}
        return {**value, key: _with_a_leaf_changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.97:
        at = rng.randrange(len(value))
        return [*value[:at], _with_a_leaf_changed(rng, value[at]), *value[at + 1 :]]
    return rng.choice(HARD)


def json_changed(rng: random.Random, text: bytes) -> bytes:
    try:
        value = msgspec.json.decode(text)
        changed = msgspec.json.encode(_with_a_leaf_changed(rng, value))
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return text
    return changed.replace(b"null", rng.choice((b"null", b"1e999", b"NaN", b"-0", b"9" * 25, b"0.1")), 1)


def _line_changed(rng: random.Random, text: bytes) -> bytes:
    lines = text.split(b"\n")
    at = rng.randrange(len(lines))
    if lines[at][:1] in (b"{", b"["):
        lines[at] = json_changed(rng, lines[at])
    elif b" = " in lines[at]:
        key, _, _ = lines[at].partition(b" = ")
        lines[at] = key + b" = " + rng.choice(HARD_TOML)
    elif rng.random() < 0.5:
        lines.insert(at, rng.choice(lines))
    return b"\n".join(lines)


def main() -> int:
    """Print what went where; exit status 1 if anything was found."""
    goal, seed = Goal.of_command(sys.argv[1:])
    print(f"seed {seed}", flush=True)
    given, total, found = parsers(), Counter[str](), dict[str, None]()
    while not goal.is_reached(total.total()):
        went, new = run(goal.part(A_PART, total.total()), seed + total.total(), given)
        total += went
        for line in new:
            if line not in found:
                found[line] = None
                print(line[:2000], flush=True)
        if total.total() % (10 * A_PART) == 0:
            print(f"{total.total()} inputs", flush=True)
    print(f"{total.total()} inputs")
    for name, times in sorted(total.items()):
        print(f"{times:10d}  {name}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
