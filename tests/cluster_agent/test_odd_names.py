"""Every option of ``clusterctl replay`` that takes a path or a name, with odd ones: it works, or says why
in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cluster_agent.cli import main

LOG = "; MaxProcs: 4\n1 0 -1 10 4 -1 -1 4 10 -1 1 1 -1 -1 -1 -1 -1 -1\n2 1 -1 5 2 -1 -1 2 9 -1 1 2 -1 -1 -1 -1 -1 -1\n"
WRITTEN = ("--out", "--swf", "--log")
READ = ("TRACE", "--policy", "--machine", "--cap", "--instance", "--configurations", "--job-watts", "--closed-loop")

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12) | st.text(
    ":/.=,%*~ -\n", max_size=8
)
"""No NUL: no command line can have one."""
SETTINGS = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.swf").write_text(LOG)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["replay", *arguments])
    return status, capsys.readouterr().err


@pytest.mark.parametrize("option", WRITTEN)
@given(name=names)
@example(name="easy:estimate=mean2")
@example(name="s3://bucket/x.gz")
@example(name="x" * 300)
@SETTINGS
def test_results_go_wherever_a_file_system_lets_them(
    option: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if ".." in name or name.startswith(("/", "~")):
        name = name.replace(".", "_").replace("/", "_")
    status, err = said(capsys, "small.swf", f"{option}={name}")
    if status == 0:
        made = Path(name, "jobs.parquet") if option == "--out" else Path(name)
        assert made.exists() or "needs pyarrow" in err
    else:
        assert status in (1, 2) and err.count("\n") == 1 and option in err
    assert not list(Path().rglob("*writing-*"))


@pytest.mark.parametrize("option", READ)
@given(name=names)
@example(name="easy:estimate=mean2:x")
@SETTINGS
def test_a_name_that_is_nothing_is_answered_in_one_line(
    option: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["small.swf", f"{option}={name}"] if option != "TRACE" else ["--", name]
    if option in ("--cap", "--job-watts"):
        given += ["--machine", "generic:nodes=1,cores=4"]
    if option == "--configurations":
        given += ["--policy", "rmap", "--machine", "cab64"]
    status, err = said(capsys, *given)
    if status:
        assert status in (1, 2) and err.splitlines()[-1].startswith("clusterctl replay: ")


def test_a_run_that_cannot_finish_its_files_leaves_those_of_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "small.swf", "--out", "out")[0] == 0
    before = Path("out/metrics.json").read_bytes()
    Path("out/jobs.csv").unlink()
    Path("out/jobs.csv").mkdir()  # cannot be replaced
    assert said(capsys, "small.swf", "--out", "out", "--policy", "fcfs")[0] == 1
    assert Path("out/metrics.json").read_bytes() == before
