"""Job logs as they are found."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
from pathlib import Path

import pytest

from cluster_agent.cli import main
from cluster_agent.workloads.job_log import Workload, machine_of, prepare
from cluster_agent.workloads.swf import REQUEST, RUN, SUBMIT, USER, TraceError, read_swf
from tests.recorded import RECORDED, needs_recorded


def line(
    number: int, submit_s: object = 0, run_s: object = 10, width: int = 1, request_s: object = 20, **more: int
) -> str:
    """A job line; ``more``: allocated, status, user."""
    allocated, status, user = more.get("allocated", -1), more.get("status", 1), more.get("user", 7)
    return f"{number} {submit_s} -1 {run_s} {allocated} -1 -1 {width} {request_s} -1 {status} {user} -1 -1 -1 -1 -1 -1"


def workload(tmp_path: Path, *lines: str, processors: int = 8, **how: bool) -> Workload:
    path = tmp_path / "log.swf"
    path.write_text("\n".join(lines) + "\n")
    return prepare(read_swf(str(path)), processors, **how)


def said(found: Workload) -> list[str]:
    return [str(finding) for finding in found.findings]


def test_a_log_is_read_with_its_header_comments_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_text(
        f"; Computer: SP2\n;  MaxProcs:  64 \n; Note: a\n; Note: b\n;\n\n{line(5)}\n; in between\n  {line(6)}\r\n"
    )
    log = read_swf(str(path))
    assert log.header == {"Computer": "SP2", "MaxProcs": "64", "Note": "a; b"}
    assert machine_of(log) == 64
    assert log.columns[0].tolist() == [5, 6]
    assert log.lines.tolist() == [7, 9]
    assert log.findings == ()


def test_a_gzipped_log_without_header_or_last_newline_is_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "log.swf.gz"
    path.write_bytes(gzip.compress(f"{line(1)}\n{line(2, user=9)}".encode()))
    log = read_swf(str(path))
    assert log.columns[USER].tolist() == [7, 9]
    assert machine_of(log) is None


def test_columns_after_the_eighteenth_are_not_read(tmp_path: Path) -> None:
    found = workload(tmp_path, line(1) + " {1241,1242} q_1d 1:ppn=64:x86_64#excl")
    assert len(found.jobs) == 1
    assert said(found) == []


def test_broken_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    found = workload(
        tmp_path,
        line(1),
        "2 0 -1 10 1",
        line(3, run_s="ten"),
        line(4, run_s="99999999999999999999"),
        line(5, run_s="1e3"),
    )
    assert found.jobs.number.tolist() == [1]
    assert found.dropped == 4
    assert said(found) == [
        "lines with too few columns: 1 dropped (first: line 2)",
        "lines with something that is no number: 3 dropped (first: line 3)",
    ]


def test_fractions_are_cut_off_and_counted(tmp_path: Path) -> None:
    found = workload(tmp_path, line(1, run_s="10.75", request_s="20.0"), line(2, submit_s="5.0"))
    assert (found.log.columns[RUN].tolist(), found.log.columns[SUBMIT].tolist()) == ([10, 10], [0, 5])
    assert said(found) == ["lines with fractions: 1 cut to whole numbers (first: line 1)"]


def test_what_cannot_have_been_a_job_here_is_dropped(tmp_path: Path) -> None:
    found = workload(
        tmp_path,
        line(1),
        line(2, submit_s=-1),
        line(3, run_s=0, status=5),
        line(4, run_s=-1),
        line(5, width=-1),
        line(6, width=9),
        line(7, width=0, allocated=3),
        line(8, request_s=1 << 50),
    )
    assert found.jobs.number.tolist() == [1, 7]
    assert found.jobs.width.tolist() == [1, 3]
    assert found.dropped == 6
    assert said(found) == [
        "jobs without a submit time: 1 dropped (first: line 2)",
        "jobs cancelled before they ran: 1 dropped (first: line 3)",
        "jobs without a run time: 1 dropped (first: line 4)",
        "jobs without a number of processors: 1 dropped (first: line 5)",
        "jobs wider than the machine: 1 dropped (first: line 6)",
        "jobs with a time beyond 1099511627776 s: 1 dropped (first: line 8)",
    ]


def test_what_is_only_imprecise_is_mended(tmp_path: Path) -> None:
    found = workload(
        tmp_path, line(1, submit_s=50, run_s=0), line(2, submit_s=60, request_s=-1), line(3, submit_s=40, run_s=25)
    )
    assert found.jobs.number.tolist() == [3, 1, 2]
    assert found.jobs.submit_s.tolist() == [40, 50, 60]
    assert found.jobs.run_s.tolist() == [20, 1, 10]
    assert found.jobs.request_s.tolist() == [20, 20, 20]
    assert found.is_cut.tolist() == [True, False, False]
    assert said(found) == [
        "jobs with a run time of 0: 1 taken as 1 s (first: line 1)",
        "jobs without a requested time: 1 taken as the log's longest (first: line 2)",
        "jobs that ran beyond their request: 1 ended at the request (first: line 3)",
        "jobs submitted before the one above them: 1 sorted (first: line 3)",
    ]


def test_a_log_without_requests_needs_a_policy_without_requests(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no job has a requested time .* choose estimate=clairvoyant"):
        workload(tmp_path, line(1, request_s=-1))
    found = workload(tmp_path, line(1, request_s=-1), needs_requests=False)
    assert found.jobs.request_s.tolist() == [10]
    assert not found.has_requests
    assert not found.is_cut.any()
    assert said(found) == []


@pytest.mark.parametrize(
    ("bad", "remedy"),
    [
        ("2 0 -1 10 1", r":2: lines with too few columns \(first of 1\): it has 5 of 18 columns"),
        (line(2, run_s="x"), r":2: lines with something that is no number \(first of 1\): column 4 is no number"),
        (line(2, width=9), r":2: jobs wider than the machine \(first of 1\): delete it, or give a larger --machine"),
        (line(2, run_s=21), r":2: jobs that ran beyond their request \(first of 1\): lower column 4 or raise column 9"),
    ],
)
def test_strict_stops_at_the_first_line_with_its_fix(tmp_path: Path, bad: str, remedy: str) -> None:
    with pytest.raises(TraceError, match=remedy):
        workload(tmp_path, line(1), bad, line(3, run_s=0), is_strict=True)


def test_a_file_without_jobs_says_what_a_job_line_is(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no job lines; a job line .* has 18 columns"):
        workload(tmp_path, "; only a header")
    with pytest.raises(TraceError, match=r"no job is left for a machine of 2 processors: jobs wider"):
        workload(tmp_path, line(1, width=3), processors=2)


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nosuch.swf: No such file"):
        read_swf(str(tmp_path / "nosuch.swf"))
    damaged = tmp_path / "log.swf.gz"
    damaged.write_bytes(gzip.compress(line(1).encode() * 100)[:-20])
    with pytest.raises(TraceError, match=r"log.swf.gz: damaged gzip file"):
        read_swf(str(damaged))


@pytest.mark.parametrize(
    ("name", "jobs", "findings"),
    [
        (
            "KTH-SP2-1996-2.1-cln",
            28_475,
            [
                "jobs without a number of processors: 1 dropped (first: line 27323)",
                "jobs with a run time of 0: 8 taken as 1 s (first: line 2476)",
                "jobs that ran beyond their request: 475 ended at the request (first: line 137)",
            ],
        ),
        (
            "MetaCentrum-wagap-2013",
            17_898,
            [
                "jobs without a run time: 2 dropped (first: line 4186)",
                "jobs that ran beyond their request: 702 ended at the request (first: line 17)",
            ],
        ),
    ],
)
@needs_recorded("swf")
def test_real_logs_are_read(name: str, jobs: int, findings: list[str]) -> None:
    log = read_swf(str(RECORDED / "swf" / f"{name}.swf.gz"))
    found = prepare(log, machine_of(log) or 2176)
    assert len(found.jobs) == jobs
    assert said(found) == findings
    assert (found.jobs.run_s <= found.log.columns[REQUEST, found.row]).all()


@pytest.mark.parametrize("names", [(3, 0, 3, -1), (10**15, 7, 10**15, -(10**15))])
def test_users_have_places_in_the_order_of_their_numbers_however_far_apart_these_are(
    names: tuple[int, ...], tmp_path: Path
) -> None:
    found = workload(tmp_path, *(line(number, user=user) for number, user in enumerate(names)))
    assert found.jobs.user.tolist() == [2, 1, 2, 0]
    assert found.users == sorted(set(names))


PARTS = """\
; Version: 2.2
; MaxProcs: 8
1 0 0 100 4 -1 -1 4 600 -1 1 1 1 -1 1 -1 -1 -1
2 10 20 300 8 -1 -1 8 600 -1 1 2 1 -1 1 -1 -1 -1
2 10 20 100 8 -1 -1 8 600 -1 2 2 1 -1 1 -1 -1 -1
2 -1 50 100 8 -1 -1 8 600 -1 2 2 1 -1 1 -1 -1 -1
2 -1 50 100 8 -1 -1 8 600 -1 {last} 2 1 -1 1 -1 -1 -1
"""


@pytest.mark.parametrize("last", [3, 4])
def test_partial_executions_of_a_job_that_has_a_line_of_its_own_are_no_jobs(
    tmp_path: Path, last: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.swf"
    path.write_text(PARTS.format(last=last))
    workload = prepare(read_swf(str(path)), 8)
    assert (workload.jobs.number.tolist(), workload.jobs.run_s.tolist()) == ([1, 2], [100, 300])
    (finding,) = workload.findings
    assert str(finding) == "partial executions of jobs that have a line of their own: 3 dropped (first: line 5)"
    assert main(["replay", str(path), "--policy", "easy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["AVEbsld"] == pytest.approx(1.15)


def test_partial_executions_without_a_line_of_their_job_stay(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_text("\n".join(line for line in PARTS.format(last=3).splitlines() if " 300 " not in line))
    log = read_swf(str(path))
    assert (log.columns[0].tolist(), log.findings) == ([1, 2, 2, 2], ())


@pytest.mark.parametrize("encode", [f"{name}" for name in ("mark", "utf-16", "gzip", "bzip2", "xz", "crlf", "cr")])
def test_a_log_is_read_in_any_encoding_with_its_header(tmp_path: Path, encode: str) -> None:
    text, path = PARTS.format(last=3), tmp_path / "log.swf"
    raw = text.encode()
    path.write_bytes(
        {
            "mark": codecs.BOM_UTF8 + raw,
            "utf-16": text.encode("utf-16"),
            "gzip": gzip.compress(raw[:50]) + gzip.compress(raw[50:]),
            "bzip2": bz2.compress(raw),
            "xz": lzma.compress(raw),
            "crlf": raw.replace(b"\n", b"\r\n"),
            "cr": raw.replace(b"\n", b"\r"),
        }[encode]
    )
    log = read_swf(str(path))
    assert (machine_of(log), log.columns[0].tolist(), log.lines.tolist()) == (8, [1, 2], [3, 4])


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x28\xb5\x2f\xfd\x00", "it is packed with zstd, which is not read here: unpack it, or pack it with gzip"),
        (b"PK\x03\x04\x00", "it is packed with zip, which is not read here: unpack it, or pack it with gzip"),
        (PARTS.encode("utf-16-le"), "it is UTF-16LE without a byte order mark: convert it with iconv -f UTF-16LE"),
        (PARTS.encode("utf-16-be"), "it is UTF-16BE without a byte order mark: convert it with iconv -f UTF-16BE"),
        (gzip.compress(PARTS.encode())[:-9], "damaged gzip file (it ends early); fetch it again"),
        (lzma.compress(PARTS.encode())[:-9], "damaged xz file (it ends early); fetch it again"),
        (b"\xff\xfe1", "it begins as UTF-16 and does not go on so: save it as UTF-8"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_name(tmp_path: Path, raw: bytes, reason: str) -> None:
    path = tmp_path / "log.swf"
    path.write_bytes(raw)
    with pytest.raises(TraceError) as refused:
        read_swf(str(path))
    assert str(refused.value).startswith(f"{path}: {reason}")
