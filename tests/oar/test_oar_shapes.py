"""OAR's jobs and rules in the shapes that its programs printed on the real OAR 2.5.9 of test_real_oar.py, and what
follows from them: what is notified, what is installed, and that nothing is left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.cli import main
from cluster_agent.errors import ClusterError
from cluster_agent.jobs.foreign_jobs import ForeignJob
from cluster_agent.oar.oar_check import oar_lacking
from cluster_agent.oar.oar_queue import ELSEWHERE, ON_NODES, oar_jobs_on_nodes, read_oar
from cluster_agent.serve.people_protocol import NotifyEnd, NotifyStart
from cluster_agent.slurm.follow import Follower
from cluster_agent.slurm.queue_json import QueuedJob

RECORDED: dict[str, Any] = {
    "startTime": 1796090312, "Job_Id": 1, "name": "my job", "submissionTime": 1796090311, "types": [],
    "cpuset_name": None, "array_index": 1, "assigned_network_address": ["n01", "n02"], "command": "sleep 8",
    "launchingDirectory": "/tmp", "reservation": "None", "array_id": 1,
    "message": "R=2,W=0:10:0,J=B,N=my job (Karma=0.000,quota_ok)", "assigned_resources": [1, 2],
    "properties": "(desktop_computing = 'NO') AND drain='NO'", "stderr_file": "OAR.my job.1.stderr",
    "resubmit_job_id": 0, "state": "Running", "owner": "alice", "jobType": "PASSIVE", "project": "default",
    "queue": "default", "dependencies": [], "stdout_file": "OAR.my job.1.stdout",
}  # fmt: skip


def text(*rows: dict[str, Any]) -> str:
    """``oarstat -J`` of jobs like the recorded one."""
    return json.dumps({str(row.get("Job_Id", 1)): RECORDED | row for row in rows})


def jobs(*rows: dict[str, Any]) -> tuple[list[QueuedJob], list[str]]:
    return oar_jobs_on_nodes(text(*rows), "oar")


def test_a_recorded_job_is_read() -> None:
    expected = QueuedJob("1", "n01,n02", frozenset({"n01", "n02"}), 1796090311, 0, "alice", "my job", "memory", "oar")
    assert jobs({"types": ["besteffort", "bdpo=monitor", "nodectl=memory"]}) == ([expected], [])
    assert oar_jobs_on_nodes(b"", "oar") == ([], []), "OAR prints nothing where it has no job"


@pytest.mark.parametrize("state", sorted(ON_NODES | ELSEWHERE | {"Teleported"}))
def test_a_job_has_nodes_in_some_states_only(state: str) -> None:
    found, unknown = jobs({"state": state})
    assert (len(found), unknown) == (state not in ELSEWHERE, [state] if state == "Teleported" else [])


def test_a_container_and_a_job_without_nodes_are_none() -> None:
    rows: list[dict[str, Any]] = [
        {"Job_Id": 1, "types": ["container"]},
        {"Job_Id": 2, "types": ["container=big"]},
        {"Job_Id": 3, "assigned_network_address": [""]},
        {"Job_Id": 4, "types": ["inner=1"], "name": None},
    ]
    assert [(job.job, job.title) for job in jobs(*rows)[0]] == [("4", "")]


@pytest.mark.parametrize(
    "answer",
    [
        "[]", "{", "3", '{"1": 3}', '{"1": {}}', text({"Job_Id": "1"}), text({"submissionTime": None}),
        text({"assigned_network_address": ["n[1-2]"]}), text({"assigned_network_address": 3}), text({"types": None}),
        text({"submissionTime": -1}), text({"submissionTime": 10**400}), "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_answer_of_oar_is_one_line_and_ends_nothing(answer: str) -> None:
    lines: list[str] = []
    sent: list[Any] = []
    known = [ForeignJob("1", ["n01"], cluster="oar")]
    follower = Follower(
        lambda: known, lambda: oar_jobs_on_nodes(answer, "oar"), sent.append, lines.append, "oar", "OAR"
    )
    assert (follower.turn(), follower.turn(), sent, len(lines)) == (False, False, [], 1)
    assert lines[0].startswith("OAR's answer has no jobs") and lines[0].endswith("; jobs that are known go on")


def test_follow_ends_what_is_gone_and_adds_what_a_script_does_not_know() -> None:
    sent: list[Any] = []
    known = [ForeignJob("1", ["n01", "n02"], cluster="oar"), ForeignJob("2", ["n03"], cluster="oar")]
    lines: list[str] = []
    assert Follower(lambda: known, jobs.__get__({}), sent.append, lines.append, "oar", "OAR").turn()
    assert [type(one) for one in sent] == [NotifyEnd, NotifyStart]
    assert (sent[0].job, sent[1].job, sent[1].submitted_s) == ("2", "1", 1796090311)
    assert lines == ["job 2 is gone from OAR and no epilog has said so: ended"]


PROGRAMS = {
    "oarstat": 'cat "$AT/jobs"; exit $(cat "$AT/status")',
    "oarnodes": """echo '{"1": {"network_address": "n01"}, "2": {"network_address": ""}}'""",
    "oaradmissionrules": """
case $1 in
-S) for file in $(ls "$AT"/rules | sort -n); do
        printf -- '--- (%s) RULE #%s\\n' "${file%%_*}" "${file#*_}"; cat "$AT/rules/$file"; printf -- '\\n---\\n'
    done ;;
-n) shift; [ "$1 $3 $5" = "-r -P -Y" ] && cp "$2" "$AT/rules/$4_$(($(ls "$AT/rules" | wc -l) + 30))" ;;
-m) [ "$3 $5 $7" = "-r -P -Y" ] && rm "$AT"/rules/*_"$2" && cp "$4" "$AT/rules/$6_$2" ;;
-d) rm "$AT"/rules/*_"$2" ;;
esac""",
    "hook": 'echo "$* : $SLURM_JOB_ID $SLURM_JOB_NODELIST $SLURM_JOB_USER [$SLURM_JOB_NAME] $SLURM_JOB_COMMENT '
    '$SLURM_CLUSTER_NAME" >>"$AT/said"; exit 3',
    "ssh": 'echo "$*" >>"$AT/ssh"',
}
"""What OAR's programs do with a folder in place of a database; recorded where it matters."""

RULE = "# Check if job types are valid\nmy @types = ();\n---\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An oar.conf, OAR's programs before all others, and a rule of the site's."""
    for folder in ("bin", "oar", "rules"):
        (tmp_path / folder).mkdir()
    for name, script in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nAT={tmp_path}\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "status").write_text("0")
    (tmp_path / "jobs").write_text(text({"types": ["bdpo=off", "nodectl=compute"]}))
    (tmp_path / "rules" / "16_16").write_text(RULE)
    conf = tmp_path / "oar" / "oar.conf"
    conf.write_bytes(b'DB_TYPE="Pg"\n#SERVER_PROLOGUE_EXEC_FILE="/no"\nOPENSSH_CMD="ssh -p 6667" # caf\xe9')
    conf.chmod(0o600)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def seen(at: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mode)
            for folder in ("oar", "rules") for path in (at / folder).rglob("*") if path.is_file()}  # fmt: skip


def test_remove_leaves_every_byte_and_every_rule_as_it_was(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = seen(site)
    conf = ["--conf", str(site / "oar" / "oar.conf"), "--yes"]
    assert main(["oar", "install", *conf]) == 0
    first = seen(site)
    assert (site / "oar" / "oar.conf").stat().st_mode & 0o777 == 0o600, "it has the password of the database"
    shown = capsys.readouterr().out
    assert f'+SERVER_EPILOGUE_EXEC_FILE="{site}/oar/nodectl/server-epilogue"' in shown and "/dev/null" in shown
    assert main(["oar", "install", *conf]) == 0
    assert seen(site) == first and "nothing to change" in capsys.readouterr().out
    assert main(["oar", "install", *conf, "--nodes"]) == 0, "with another choice the same two rules have another text"
    assert len(list((site / "rules").iterdir())) == 3 and seen(site) != first
    assert main(["oar", "remove", *conf]) == 0
    assert seen(site) == before and not (site / "oar" / "nodectl").exists()


def test_a_site_keeps_its_own_prologue_and_a_wait_that_would_stop_the_queues_is_refused(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = site / "oar" / "oar.conf"
    conf.write_text('SERVER_PROLOGUE_EXEC_FILE="/site/own"\nSERVER_PROLOGUE_EPILOGUE_TIMEOUT=30\n')
    before = seen(site)
    assert main(["oar", "install", "--conf", str(conf), "--yes", "--wait", "10"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is 30 s and the scripts may take 30: OAR would stop its queues" in line and seen(site) == before
    assert main(["oar", "install", "--conf", str(conf), "--yes", "--wait", "9"]) == 0
    assert 'SERVER_PROLOGUE_EXEC_FILE is /site/own already: let it end with `exec nodectl/server-prologue "$1"`' in (
        capsys.readouterr().out
    )
    assert "\nSERVER_PROLOGUE_EXEC_FILE=" not in conf.read_text()
    conf.write_text(conf.read_text().replace("=30", "=20"))  # after the installation
    assert any("is 20 s and the scripts may take 29" in line for line in oar_lacking(conf, "/bin/true", site / "no"))


@pytest.mark.parametrize(("script", "word"), [("server-prologue", "start"), ("server-epilogue", "end")])
def test_a_script_says_what_the_job_is_and_succeeds_whatever_the_hook_does(site: Path, script: str, word: str) -> None:
    conf = str(site / "oar" / "oar.conf")
    hook = str(site / "bin" / "hook")
    assert main(["oar", "install", "--conf", conf, "--yes", "--nodes", "--hook", hook, "--socket", "/a b'c"]) == 0
    command = [str(site / "oar" / "nodectl" / script)]
    done = subprocess.run([*command, "1"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    assert (site / "said").read_text() == (
        f"{word} --quiet --wait 5 --socket /a b'c : 1 n01,n02 alice [my job] nodectl=off nodectl=compute oar\n"
    )
    remote = sorted((site / "ssh").read_text().splitlines())
    assert [line.split(" oardodo sh -c ")[0] for line in remote] == ["-p 6667 n01", "-p 6667 n02"]
    assert ("echo comment=nodectl=off nodectl=compute;" in remote[0]) == (word == "start")
    assert ("rm -f /run/nodectl/site-jobs/1'" in remote[0]) == (word == "end")
    for odd in (
        text({"types": ["container"]}),
        "",
        "{",
        '{"1": 3}',
        text({"owner": "a; reboot", "assigned_network_address": ["n1; x"]}),
    ):
        (site / "jobs").write_text(odd)
        subprocess.run([*command, "1"], capture_output=True, check=True, timeout=60)
    assert len((site / "said").read_text().splitlines()) == 2, "of the last one alone, without its odd names"
    assert "reboot" not in (site / "said").read_text() and "x" not in (site / "ssh").read_text().split()
    for number in ("", "x", "1; reboot"):
        subprocess.run([*command, number], capture_output=True, check=True, timeout=60)


def installed(site: Path, *options: str) -> Path:
    """The prologue, which finds the nodes' /run/nodectl in the site's folder."""
    assert main(["oar", "install", "--conf", str(site / "oar" / "oar.conf"), "--yes", *options]) == 0
    script = site / "oar" / "nodectl" / "server-prologue"
    script.write_text(script.read_text().replace("/run/nodectl", str(site / "run")))
    return script


def test_a_start_takes_away_what_a_lost_end_has_left_on_the_nodes(site: Path) -> None:
    script = installed(site, "--nodes", "--hook", str(site / "bin" / "hook"))
    (site / "bin" / "ssh").write_text('#!/bin/sh\nshift 3; exec sh -c "$*"\n')
    (site / "bin" / "oardodo").write_text('#!/bin/sh\nexec "$@"\n')
    (site / "bin" / "oardodo").chmod(0o755)
    jobs = site / "run" / "site-jobs"
    jobs.mkdir(parents=True)
    for name in ("3", "7", "8", "12", "odd"):
        (jobs / name).write_text("user=alice\n")
    (site / "jobs").write_text(
        text(*({"Job_Id": number, "assigned_network_address": ["n01"]} for number in (7, 10, 1012)))
    )
    done = subprocess.run([str(script), "10"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    assert {path.name for path in jobs.iterdir()} == {"7", "10", "12", "odd"}
    assert (jobs / "10").read_text() == "user=alice\ncomment=\n"
    (site / "jobs").write_text("DB connection error, exiting.\n")
    subprocess.run([str(script), "11"], capture_output=True, check=True, timeout=60)
    assert {path.name for path in jobs.iterdir()} == {"7", "10", "12", "odd"}, "no answer is none"


def test_a_script_succeeds_whatever_it_lacks_and_waits_for_nothing_beyond_its_limit(site: Path) -> None:
    script = installed(site, "--nodes", "--hook", str(site / "bin" / "hook"))
    (site / "jobs").write_text(text({"types": "odd"}))
    subprocess.run([str(script), "1"], capture_output=True, check=True, timeout=60)
    assert " 1 n01,n02 alice " in (site / "said").read_text()
    whole = script.read_text()
    script.write_text(whole.replace("JSON::PP", "JSON::Missing"))
    done = subprocess.run([str(script), "1"], capture_output=True, text=True, check=True, timeout=60)
    assert "JSON/Missing.pm" in done.stderr
    script.write_text(re.sub(r"alarm\([0-9]+\)", "alarm(1)", whole))
    for name in ("ssh", "hook"):
        (site / "bin" / name).write_text("#!/bin/sh\nexec sleep 4\n")
    began_s = time.monotonic()
    subprocess.run([str(script), "1"], stderr=subprocess.DEVNULL, check=True, timeout=60)
    assert time.monotonic() - began_s < 3


def test_the_rules_set_types_aside_and_add_them_again(site: Path) -> None:
    """As OAR does it: all rules are one text, which is evaluated (OAR::IO::add_micheline_jobs)."""
    assert main(["oar", "install", "--conf", str(site / "oar" / "oar.conf"), "--yes", "--nodes"]) == 0
    ours = [
        path.read_text() for path in sorted((site / "rules").iterdir(), key=lambda one: int(one.name.split("_")[0]))
    ]
    rules = ours[0] + 'print "site: @$type_list\\n"; # no end' + ours[2]
    program = (
        "use strict; use warnings; my $type_list = [@ARGV]; local $/; my $rules = <STDIN>; eval $rules;"
        ' print $@ || "@$type_list\\n"'
    )

    def admitted(*types: str) -> str:
        done = subprocess.run(["perl", "-e", program, *types], input=rules, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout

    assert (
        admitted("besteffort", "bdpo=off", "nodectl=memory") == "site: besteffort\nbesteffort bdpo=off nodectl=memory\n"
    )
    assert admitted() == "site: \n\n" and admitted("bdpotent") == "site: bdpotent\nbdpotent\n"
    assert admitted("bdpo=fast").startswith("[ADMISSION RULE] Error: bdpo=fast is none of nodectl=memory,")
    assert admitted("bdpo=off", "bdpo=off").startswith("[ADMISSION RULE] Error: a job has one type bdpo=...")


def test_programs_that_fail_are_one_line_each(site: Path, tmp_path: Path) -> None:
    (site / "status").write_text("25")
    (site / "jobs").write_text("DB connection error, exiting.\n")
    with pytest.raises(ClusterError, match=r"^oarstat failed: DB connection error, exiting\.$"):
        read_oar("oar")
    with pytest.raises(ClusterError, match=r"cannot run it: No such file or directory \(oar-user\)$"):
        read_oar("oar", str(tmp_path / "no"))
    lines = oar_lacking(site / "oar" / "oar.conf", "/no/hook", tmp_path / "no.sock")
    assert [line.split()[0] for line in lines] == [
        "SERVER_PROLOGUE_EXEC_FILE", "SERVER_EPILOGUE_EXEC_FILE", "/no/hook", "oarstat", f"{tmp_path}/no.sock:",
    ]  # fmt: skip
