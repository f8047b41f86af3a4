"""``python -m benchmarks published``: whether rows are current, and how they are made, kept and checked."""

from __future__ import annotations

import argparse
import datetime
import importlib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.publishing.measurements import MEASUREMENTS
from benchmarks.publishing.pages import PAGES, Place, differences, files, places, rewrite
from benchmarks.publishing.rows import (
    FOLDER,
    ROOT,
    Measurement,
    Published,
    Row,
    code_files,
    code_hash,
    data_hash,
    text_of,
)


def state(path: Path) -> str:
    """Whether the rows of a file are those of the code and the data that are here."""
    if not path.exists():
        return "missing"
    published = Published.read(path)
    if published.is_transcribed:
        return "transcribed"
    measurement = MEASUREMENTS[path.stem]
    if published.header["code"] != code_hash(measurement):
        return "code changed"
    if measurement.data and not measurement.has_data:
        return "current code, data not here"
    return "current" if published.header.get("data", "") in ("", data_hash(measurement)) else "data changed"


def publish(measurement: Measurement, is_run: bool, made_by: str | None = None, note: str | None = None) -> Path:
    """Run a measurement and keep its rows. With ``is_run`` it has been run, and nothing has changed since; by which
    command, if only in part, ``made_by`` says."""
    if is_run:
        newest = max(path.stat().st_mtime for path in code_files(f"benchmarks.{measurement.name}"))
        if any(not path.exists() or path.stat().st_mtime < newest for path in measurement.left):
            raise SystemExit(f"{measurement.name}: its sources are newer than its figures in out/bench; run it again")
    else:
        for run in measurement.runs:
            importlib.import_module(f"benchmarks.{measurement.name}").main(list(run))
    rows = [{key: text_of(value) for key, value in row.items()} for row in measurement.collect()]
    header = {
        "made by": made_by or measurement.command,
        "made on": datetime.date.fromtimestamp(measurement.left[0].stat().st_mtime).isoformat(),
        "origin": "computed",
        "code": code_hash(measurement),
        "data": data_hash(measurement) if measurement.data else "",
        "note": note or "",
    }
    path = FOLDER / f"{measurement.name}.csv"
    Published(header, rows).write(path)
    return path


def transcribe(place: Place, made_by: str | None, note: str | None) -> Path:
    """Keep the cells of a table that no run makes again; what is not given of the header stays as it was."""
    path = FOLDER / place.file
    header = dict(Published.read(path).header) if path.exists() else {}
    header |= {"made by": made_by or header.get("made by", ""), "origin": "transcribed"}
    header |= {"note": note or header.get("note", "")}
    if not header["made by"] or not header["note"]:
        raise SystemExit(f"{place.file}: say --made-by and --note: what made the figures, and why it is not run again")
    Published(header, [{str(at): cell for at, cell in enumerate(cells)} for cells in place.cells]).write(path)
    return path


def compared(measurement: Measurement, rows: Iterable[Row]) -> Iterator[tuple[Row, list[str]]]:
    """Each row, computed again, and which figures differ by half a printed unit or more."""
    for row in rows:
        wrong = []
        for figure, value in measurement.again(row).items():
            kept = float(row[figure]) if row[figure] else math.nan
            if not (abs(value - kept) < measurement.precision[figure] / 2 or (math.isnan(value) and math.isnan(kept))):
                wrong.append(f"{figure} is {value:.6g}, published as {kept:.6g}")
        yield row, wrong


def command(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks published",
        description="Whether the tables of measurements on the pages are current.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASUREMENTS)}; default: all")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compute some rows of each again, and compare")
    what.add_argument("--check-all", action="store_true", help="compute every row again, and compare")
    what.add_argument(
        "--publish", action="store_true", help="run the named measurements, keep their rows, rewrite the pages"
    )
    what.add_argument(
        "--collect", action="store_true", help="as --publish, with the figures of a run that has just ended"
    )
    what.add_argument("--transcribe", metavar="FILE.csv", help="keep the cells of a table that no run makes again")
    parser.add_argument(
        "--made-by", metavar="COMMAND", help="what made the figures, for --transcribe and part of --collect"
    )
    parser.add_argument(
        "--note", metavar="TEXT", help="what a reader must know of them, such as why they are not computed"
    )
    options = parser.parse_args(arguments)
    if options.transcribe:
        named = [place for page in PAGES for place in places(page) if place.file == options.transcribe]
        if len(named) != 1:
            parser.error(f"{len(named)} tables name {options.transcribe}")
        print(transcribe(named[0], options.made_by, options.note).relative_to(ROOT))
        return 0
    unknown = [name for name in options.names if name not in MEASUREMENTS]
    if unknown:
        parser.error(f"nothing of {unknown[0]!r} is published")
    if (options.publish or options.collect) and not options.names:
        parser.error("name what to publish")
    chosen = [MEASUREMENTS[name] for name in options.names or MEASUREMENTS]
    if options.publish or options.collect:
        for measurement in chosen:
            print(publish(measurement, options.collect, options.made_by, options.note).relative_to(ROOT))
        for page in PAGES:
            rewrite(page)
        for measurement in chosen:
            for key in measurement.tables:  # what was transcribed before is computed now
                (FOLDER / f"{measurement.name}-{key}.csv").unlink(missing_ok=True)
        return 0
    wrong = 0
    for file in files():
        if not options.names or file.removesuffix(".csv") in options.names:
            now = state(FOLDER / file)
            wrong += now == "missing"
            note = Published.read(FOLDER / file).header.get("note", "") if now != "missing" else ""
            print(f"{file:28} {now}{note and ': '}{note}", flush=True)
    for measurement in chosen if options.check or options.check_all else ():
        wrong += _check(measurement, options.check_all)
    for place in (place for page in PAGES for place in places(page)):
        found = differences(place) if (FOLDER / place.file).is_file() else [f"{place}: a table without rows"]
        wrong += len(found)
        print("".join(f"{line}\n" for line in found), end="")
    return 1 if wrong else 0


def _check(measurement: Measurement, is_whole: bool) -> int:
    if not measurement.has_data:
        print(f"{measurement.name}: not computed again: ../shared/data is not here")
        return 0
    path = FOLDER / f"{measurement.name}.csv"
    if not path.exists() or Published.read(path).is_transcribed:
        print(f"{measurement.name}: not computed again: its rows are {state(path)}")
        return 0
    rows = Published.read(path).rows
    taken = [row for row in rows if is_whole or measurement.sample(row)]
    count = 0
    for row, wrong in compared(measurement, taken):
        count += bool(wrong)
        for line in wrong:
            print(f"{measurement.name}: {','.join(row.values())}: {line}", flush=True)
    print(f"{measurement.name}: {len(taken)} of {len(rows)} rows computed again, {count} differ", flush=True)
    return count
