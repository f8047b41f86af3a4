"""Files as other programs write them: valid ones of known meaning, nearly right ones, and all of them encoded.

A text is made of the parts that its format has (cells of a table, keys of TOML, leaves of JSON). ``damaged`` replaces
some of them by what is hard to take. ``encoded`` writes a text as editors, shells and archives do. ``true_sacct`` and
``true_swf`` write jobs of known times, watts and sizes in the ways that Slurm and logs have for them.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

from tests.fuzzing.parsers import HARD_TOML, bytes_changed, json_changed

HARD: Final = (
    "", " ", "-1", "0", "nan", "inf", "-inf", "1e3", "1e308", "1e999", "1,234", "1.234,5", "1_000", "0x10", "9" * 19,
    "9" * 30, "9" * 5000, "18446744073709551614", "18446744073709551615", "4294967294", "4294967295", "2147483648",
    "-9223372036854775808", "1.5", ".5", "+5", "\t7", "7\r", '"', '""', '"7"', '"7', "'7'", "\0", "\x1b[2J", "\u202e",
    "\ufeff", "\ud7ff", "\u2028", "\x85", "\x0b", "\x0c", "\xb2", "\u0663", "None", "Unknown", "unlimited", "UNLIMITED",
    "1-00:00:00", "99999999-00:00:00", "2025-06-01T10:00:00", "2025-06-01T10:00:00+0200", "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00", "1748772010", "x" * 140_000, "|", "||", ",", "a|b", "#", ";", "%n%s", "../..", "=",
)  # fmt: skip
"""Cells that are hard to take."""

NUMBERS: Final = ("-1", "0", "1", "2", "0.5", "-0.5", "nan", "1e308", "9" * 19, "9" * 30, "2147483648", "-600")
HARD_KEYS: Final = (
    "[x]",
    "x = 1",
    "[[nodes]]",
    "name = 1",
    "a" * 1000 + " = 1",
    "x = " + "[" * 40 + "]" * 40,
    "\0",
    "=",
)


VALUES: Final = (*(one.decode() for one in HARD_TOML), "[]", "0", "1", "-0.5", "2")


def damaged(rng: random.Random, text: str, between: str) -> str:
    """Some parts of it replaced. ``between``: what separates the cells of a table; "" for TOML and JSON."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if between:
            text = _cells_changed(rng, text, between)
        elif text.startswith("{"):
            text = _leaf_changed(rng, text)
        else:
            text = _key_changed(rng, text)
    return text


def _cells_changed(rng: random.Random, text: str, between: str) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    cells = lines[at].split(between)
    column = rng.randrange(len(cells))
    kind = rng.randrange(13)
    if kind < 6:
        cells[column] = rng.choice(HARD if kind < 3 else NUMBERS)
    elif kind == 6:
        del cells[column]
    elif kind == 7:
        cells.insert(column, rng.choice((cells[column], "", "7")))
    elif kind == 8:  # a column of all lines, so that they still fit the header
        return "\n".join(_without(line, between, column) for line in lines)
    elif kind == 9:
        lines.insert(at, rng.choice(lines))
        return "\n".join(lines)
    elif kind == 10:
        other = rng.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
        return "\n".join(lines)
    elif kind == 11:
        other = rng.randrange(len(cells))
        cells[column], cells[other] = cells[other], cells[column]
    else:
        cells = [rng.choice(("", "# x", "; x", between * 30, lines[at][: rng.randrange(20)], "\x1a"))]
    lines[at] = between.join(cells)
    return "\n".join(lines)


def _without(line: str, between: str, column: int) -> str:
    cells = line.split(between)
    return between.join(cells[:column] + cells[column + 1 :])


def _key_changed(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    keys = [at for at, line in enumerate(lines) if "=" in line or line.startswith("  [")]
    at = rng.choice(keys) if keys else 0
    kind = rng.randrange(8)
    if kind < 5 and "=" not in lines[at]:  # a row of a table
        parts = lines[at].strip("[], ").split(", ")
        parts[rng.randrange(len(parts))] = rng.choice(VALUES)
        lines[at] = f"  [{', '.join(parts)}],"
    elif kind < 5:
        key, _, value = lines[at].partition("=")
        parts = value.split(", ")
        parts[rng.randrange(len(parts))] = rng.choice(VALUES)
        lines[at] = f"{key}= {rng.choice((', '.join(parts), rng.choice(VALUES)))}"
    elif kind == 5:
        del lines[at]
    elif kind == 6:
        lines.insert(at, rng.choice(lines))
    else:
        lines.insert(at, rng.choice(HARD_KEYS))
    return "\n".join(lines)


def _leaf_changed(rng: random.Random, text: str) -> str:
    lines = text.encode().split(b"\n")
    if rng.random() < 0.2:
        lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    at = rng.randrange(len(lines))
    whole = json_changed(rng, text.encode()) if lines[0].endswith(b"[") else b""
    lines[at] = json_changed(rng, lines[at])
    return (whole or b"\n".join(lines)).decode("utf-8", "replace")


ENCODINGS: Final = ("mark", "mark", "utf-16", "utf-16", "utf-32", "crlf", "gzip", "two gzips", "bzip2", "xz")
RARE: Final = ("bzip2", "xz", "gzip", "two gzips")
"""What takes long to pack."""


def encoded(rng: random.Random, text: str) -> tuple[str, bytes]:
    """The name of an encoding, and the text in it. All of them mean the same."""
    name = rng.choice(ENCODINGS)
    if name in RARE and rng.random() < 0.9:
        name = "mark"
    raw = text.encode("utf-8", "surrogatepass")
    if name == "mark":
        return name, codecs.BOM_UTF8 + raw
    if name in ("utf-16", "utf-32"):
        order, mark = rng.choice((("-le", "_LE"), ("-be", "_BE")))
        known = getattr(codecs, f"BOM_{name.upper().replace('-', '')}{mark}")
        return name, known + text.encode(name + order, "surrogatepass")
    if name == "crlf":
        return name, raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    if name == "gzip":
        return name, gzip.compress(raw, 1)
    if name == "two gzips":
        half = len(raw) // 2
        return name, gzip.compress(raw[:half], 1) + gzip.compress(raw[half:], 1)
    return name, bz2.compress(raw, 1) if name == "bzip2" else lzma.compress(raw, preset=0)


def broken(rng: random.Random, raw: bytes) -> bytes:
    """Some bytes of it changed, or another encoding than it says."""
    kind = rng.randrange(8)
    if kind == 0:
        return raw[: rng.randrange(len(raw) + 1)]
    if kind == 1:
        return (
            rng.choice((b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\x00", b"\xff\xfe", b""))
            + raw
        )
    if kind == 2:
        return raw.decode("utf-8", "replace").encode("utf-16-le")
    if kind == 3:
        return raw.replace(b"\n", b"\r")
    return bytes_changed(rng, raw, raw or b"x")


# --- files of known meaning


NO_NUMBERS: Final = (
    "9" * 19, "9" * 20, "18446744073709551617", "-9223372036854775809", "1-2", "+", "-", "1e3", "0x4", "x",
)  # fmt: skip
"""What no column of a job log can be."""


def true_swf(rng: random.Random) -> tuple[str, Any]:
    """Jobs, some of them with parts of their own, written with blanks, signs and fractions as logs have them, between
    lines that are no jobs."""
    lines, rows, submit_s = ["; MaxProcs: 64"], [], 0
    for number in range(1, rng.randrange(2, 5)):
        submit_s += rng.randrange(100)
        run_s, width = rng.randrange(1, 500), rng.randrange(1, 65)
        request_s = run_s + rng.randrange(500)
        job = [number, submit_s, 5, run_s, width, -1, -1, width, request_s, -1, 1, 7, 1, 1, 1, -1, -1, -1]
        job[rng.choice((4, 7, 2))] = -1  # one of both widths is enough, and the wait may be unknown
        while rng.random() < 0.2:
            lines.append(rng.choice(("", "; a comment", "   ", _no_job(rng, job))))
        lines.append(_swf_line(rng, job, run_s, rng.choice((0, 1))))
        rows.append((number, submit_s, run_s, request_s, width, len(lines)))
        if rng.random() < 0.3:
            lines += [_swf_line(rng, job, max(run_s // 2, 1), status) for status in (2, rng.choice((3, 4)))]
    columns = [list(column) for column in zip(*rows, strict=True)]
    return "\n".join(lines) + "\n", [64, columns.pop(), *columns, [0] * len(rows)]


def _swf_line(rng: random.Random, job: list[int], run_s: int, status: int) -> str:
    words = [*map(str, job[:3]), str(run_s), *map(str, job[4:10]), str(status), *map(str, job[11:])]
    if rng.random() < 0.2:
        at = rng.choice([at for at, word in enumerate(words) if word[0] != "-"])
        words[at] = rng.choice(("+", "000")) + words[at]
    end = rng.choice(("", ".0", " {1,2} q", "\t"))
    return rng.choice(("", " ")) + rng.choice((" ", "  ", "\t")).join(words) + end


def _no_job(rng: random.Random, job: list[int]) -> str:
    """A line of the log that no job can be read from."""
    words = [str(one) for one in job]
    if rng.random() < 0.5:
        words[rng.randrange(18)] = rng.choice(NO_NUMBERS)
    else:
        del words[rng.randrange(18) :]
    return " ".join(words)


def true_sacct(rng: random.Random) -> tuple[str, Any]:
    """Jobs as ``sacct`` of some version and with some options writes them: what is known of each must be read."""
    has_offset, bars, has_raw = rng.random() < 0.4, rng.choice(("|", "|", "|", ";", "^")), rng.random() < 0.8
    columns = ["JobID", "JobName", "Submit", "Start", "End", "State", rng.choice(("NNodes", "AllocNodes"))]
    columns += [rng.choice(("NCPUS", "AllocCPUS")), "ReqMem", rng.choice(("AllocTRES", "AllocGRES")), "TimelimitRaw"]
    columns += ["ElapsedRaw"] if has_raw else []
    columns += ["ConsumedEnergyRaw"]
    if rng.random() < 0.5:
        rng.shuffle(columns)
    rows, truth, at_s = [bars.join(columns)], [], 1_750_000_000

    def clock(at_s: int) -> str:
        if not has_offset:
            return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        if rng.random() < 0.3:
            return str(at_s)
        zone = timezone(timedelta(hours=rng.choice((-5, 0, 1, 2))))
        return datetime.fromtimestamp(at_s, zone).strftime("%Y-%m-%dT%H:%M:%S%z")

    def add(**given: str) -> None:
        given["NNodes"] = given["AllocNodes"] = given.pop("nodes")
        given["NCPUS"] = given["AllocCPUS"] = given.pop("cores")
        given["AllocGRES"] = given.setdefault("AllocTRES", "")
        rows.append(bars.join(given.get(name, "") for name in columns))

    for number in range(100, 100 + rng.randrange(1, 4)):
        at_s += rng.randrange(1000)
        wait_s, run_s, units = rng.randrange(500), rng.randrange(60, 5000), rng.choice((1, 1, 2))
        suspended_s = rng.choice((0, 0, 3600, 86400)) if has_raw else 0
        gpus, joules = units * rng.randrange(3), run_s * units * rng.randrange(50, 500)
        start_s, end_s = at_s + wait_s, at_s + wait_s + run_s + suspended_s
        name = rng.choice((f"{number}", f"{number}_3", f"{number}+0"))
        times = {"Submit": clock(at_s), "Start": clock(start_s), "End": clock(end_s), "ElapsedRaw": str(run_s)}
        sums = {"extern": joules, "batch": joules // units, "0": joules - 1, "1": joules - 2}
        present = [step for step in sums if rng.random() < 0.5] if rng.random() < 0.7 else []
        own = {True: "", False: str(sum(sums[step] for step in present))}[rng.random() < 0.4]
        best = max((sums[step] for step in present), default=0)
        if not present:
            own, best = rng.choice(
                ((str(joules), joules), ("", 0), ("0", 0), ("18446744073709551614", 0), ("4294967294", 0), ("nan", 0),
                 (str(run_s * units * 20_001), 0), ("-5", 0))
            )  # fmt: skip
        state = rng.choice(("COMPLETED", "FAILED", "REQUEUED", "PREEMPTED", "CANCELLED by 7", "TIMEOUT", "RESIZING"))
        per_node, cores = rng.randrange(1, 64), 16 * units
        memory = rng.choice((f"{per_node}Gn", f"{per_node * units}G", f"{per_node * units << 10}M"))
        add(
            JobID=name, JobName=rng.choice(("a", "cfd-7", "with blanks", "quo'te\"s", "é")), State=state, **times,
            nodes=str(units), cores=str(cores), ReqMem=memory, AllocTRES=_gpus(rng, gpus),
            TimelimitRaw=rng.choice(("1440", "UNLIMITED", "Partition_Limit", "4294967295")), ConsumedEnergyRaw=own,
        )  # fmt: skip
        for step in present:
            add(
                JobID=f"{name}.{step}", JobName=step, State="COMPLETED", **times, nodes="1", cores="16",
                AllocTRES="cpu=16", ConsumedEnergyRaw=str(sums[step]),
            )  # fmt: skip
        need = [16, gpus // units, 0, per_node << 20]
        truth.append([name.partition("+")[0], at_s, wait_s, run_s, units, need, best / run_s if best else None])
        if rng.random() < 0.2:
            add(
                JobID=str(number + 50), State=rng.choice(("CANCELLED by 7", "PENDING", "RUNNING")), Submit=clock(at_s),
                Start=rng.choice(("Unknown", "None")), End="Unknown", ElapsedRaw="0", nodes="1", cores="1",
            )  # fmt: skip
    first_s = truth[0][1]
    for row in truth:
        row[1] -= first_s
    return "\n".join(rows) + "\n", truth


def _gpus(rng: random.Random, gpus: int) -> str:
    """So many GPUs, as some version of Slurm writes them."""
    if not gpus:
        return rng.choice(("cpu=16,node=1", "billing=16,gres/gpumem=9,gres/gpuutil=3", "cpu=16,gres/shard=4"))
    kind = rng.choice(("a100", "4090", "1g.5gb", "nvidia_a100-sxm4-80gb", "3g.20gb"))
    return rng.choice(
        (
            f"cpu=16,gres/gpu={gpus}", f"gres/gpu:{kind}={gpus},gres/gpu={gpus},node=1", f"gres/gpu:{kind}={gpus}",
            f"gpu:{gpus}", f"gpu:{kind}:{gpus}", f"gpu(IDX:0-{gpus - 1})", f"gpu:{kind}:{gpus}(IDX:0-{gpus - 1})",
            f"gpu:{gpus}(S:0-1)", "gpu:" + kind + "(IDX:" + ",".join(map(str, range(gpus))) + ")", f"gres:gpu:{gpus}",
        )
    )  # fmt: skip
