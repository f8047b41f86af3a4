"""Policies of a site: from a file, at work, in the journal, and what is said when they cannot be used."""

import csv
import os
import shutil
import textwrap
import zlib

import msgspec
import pytest

from foundation.shell.extension import ExtensionFailedError, below, split
from foundation.shell.settings import ConfigError
from nodectl.cli import main
from nodectl.commands.run import configure, policy_choice
from nodectl.config import Config, JournalSettings, PolicyChoice
from nodectl.journal import open_journal
from nodectl.journal.format import HEADER, MAGIC, encode_keyframe
from nodectl.loop.agent import Agent
from nodectl.policies import registry
from tests.nodectl.altered_journal import alter
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

GOOD = """
import msgspec
import numpy as np
from nodectl.policies.api import Policy, Request

class Params(msgspec.Struct, frozen=True):
    khz: int = 1_400_000
    def __post_init__(self):
        if self.khz < 1_000_000:
            raise ValueError("khz has to be 1000000 or more")

class State(msgspec.Struct, frozen=True):
    periods: int

def initial(params, layout):
    return State(0)

def decide(params, layout, state, sample):
    free = Request.free(len(layout.cpus))
    target = np.full(len(layout.cpus), params.khz)
    return State(state.periods + 1), Request(target, free.reason, free.loss, free.saved_w)

POLICY = Policy("site-clock", "cpu", "one clock", "ours", ("the site's clock",), Params, initial, decide)
"""


def write(folder, text: str = GOOD, name: str = "mine.py"):
    path = folder / name
    path.write_text(textwrap.dedent(text))
    path.chmod(0o644)
    return path


def instead(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def run(state_dir, choice: str, seconds: float = 2.0, **params):
    """The agent with this CPU policy on an emulated node; the clock limits that it found, and those that it left."""
    machine = load_machine("taurus")
    config = Config(
        mode="optimize",
        state_dir=str(state_dir),
        cpu_policy=PolicyChoice(choice, params),
        gpu_policy=PolicyChoice("none"),
        journal=JournalSettings(dir=str(state_dir / "journal")),
    )
    said: list[str] = []
    with InProcess(Twin(machine, load_workload("hpl", machine, duration_s=seconds))) as node:
        limit = "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"
        before = node.ports.files.read(limit)
        try:
            with Agent.open(node.ports, config, log=said.append) as agent:
                agent.run(until_ns=node.ports.clock.now_ns() + round(seconds * 1e9))
        finally:
            assert node.ports.files.read(limit) == before
    return said


def complaint(capsys, *arguments: str) -> str:
    status = main(arguments)
    captured = capsys.readouterr()
    assert status == 2, captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""
    return captured.err.strip()


@pytest.mark.parametrize(
    ("text", "choice", "said"),
    [
        (None, "", "/mine.py: cannot read it: No such file or directory"),
        ("x = 1\ndef f(:\n", "", "/mine.py:2: invalid syntax"),
        ("import nowhere_at_all\n", "", "/mine.py:1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("import sys\n\nsys.exit(0)\n", "", "/mine.py:3: SystemExit: 0"),
        ("POLICIES = 1\n", "", "/mine.py: defines no POLICY (from nodectl.policies.api import Policy)"),
        (GOOD, ":POLCY", "/mine.py: defines no POLCY (nearest: POLICY)"),
        ("a = 1\nPOLICY = {}\n", "", "/mine.py:2: POLICY is no nodectl.policies.api.Policy"),
        (instead('"cpu", "one', '"gpu", "one'), "", "/mine.py' is a gpu policy"),
        (instead('"cpu", "one', '"fpga", "one'), "", "/mine.py:23: POLICY: domain: 'fpga' is none of cpu, gpu"),
        (instead('"site-clock"', '"bdpo-cpu"'), "", "/mine.py:23: POLICY is called 'bdpo-cpu', which ships with"),
        (instead("layout, state, sample):", "sample):"), "",
         "/mine.py:23: POLICY: decide: cannot be called with (params, layout, state, sample): too many"),
        (instead("khz: int = 1_400_000", "khz: int"), "", "/mine.py:23: POLICY: params: has no default for khz"),
        (GOOD, ":khz=1", "site-clock: khz has to be 1000000 or more"),
        (GOOD, ":POLICY:khz=fast", "site-clock: khz: expected a whole number, got text"),
        (GOOD, ":kzh=1", "site-clock has no parameter 'kzh' (nearest: khz)"),
        (instead('raise ValueError("khz has to be 1000000 or more")', "return 1 / 0"), ":khz=1",
         "/mine.py:10: ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_one_line_that_names_file_and_line(tmp_path, capsys, text, choice, said):
    path = tmp_path / "mine.py" if text is None else write(tmp_path, text)
    line = complaint(capsys, "run", "--mode", "optimize", "--cpu-policy", f"{path}{choice}")
    assert line.startswith("nodectl run: --cpu-policy: ")
    assert said in line


def test_a_file_that_others_may_write_is_refused(tmp_path, capsys):
    path = write(tmp_path)
    path.chmod(0o664)
    line = complaint(capsys, "run", "--mode", "optimize", "--cpu-policy", str(path))
    assert line.endswith("mine.py: others may write this code (mode 664): chmod go-w it")


def test_a_file_of_another_user_is_refused(tmp_path, capsys, monkeypatch):
    path = write(tmp_path)
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    line = complaint(capsys, "run", "--mode", "optimize", "--cpu-policy", str(path))
    assert "who could have user" in line and line.endswith("run anything: chown it")


def test_a_path_in_a_settings_file_is_relative_to_that_file(tmp_path):
    path = write(tmp_path)
    settings = tmp_path / "nodectl.toml"
    settings.write_text('[cpu_policy]\nname = "./mine.py:POLICY"\nparams = { khz = 1_600_000 }\n')
    assert configure(settings, {}).cpu_policy == PolicyChoice(f"{path}:POLICY", {"khz": 1_600_000})
    settings.write_text('\n[cpu_policy]\nname = "./yours.py"\n')
    with pytest.raises(ConfigError) as caught:
        configure(settings, {})
    assert str(caught.value) == f"{settings}:3: {tmp_path}/yours.py: cannot read it: No such file or directory"


@pytest.mark.parametrize(
    ("text", "choice", "rest"),
    [
        ("easy", "easy", ""),
        ("easy:estimate=mean2,ties=sc15", "easy", "estimate=mean2,ties=sc15"),
        ("multifactor:users=x.py", "multifactor", "users=x.py"),
        ("./mine.py", "./mine.py", ""),
        ("./mine.py:OTHER", "./mine.py:OTHER", ""),
        ("./mine.py:a=1,b=2", "./mine.py", "a=1,b=2"),
        ("/x/mine.py:OTHER:a=1", "/x/mine.py:OTHER", "a=1"),
        ("a.py/mine.py:a=b.py", "a.py/mine.py", "a=b.py"),
    ],
)
def test_a_choice_is_a_name_or_a_file_and_its_parameters(tmp_path, text, choice, rest):
    assert split(text) == (choice, rest)
    moved = below(tmp_path, text)
    assert moved == (text if ".py" not in choice else os.path.normpath(tmp_path / choice) + text[len(choice) :])


def test_a_policy_of_a_file_decides_and_its_journal_names_its_code(tmp_path, capsys):
    path = write(tmp_path)
    choice = policy_choice(f"{os.path.relpath(path)}:khz=1600000", "--cpu-policy")
    said = run(tmp_path, choice["name"], **choice["params"])
    origin = registry.find(str(path), "cpu").origin
    assert f"policy site-clock: {path}, SHA-256 {origin.sha256[:16]}" in said

    journal = tmp_path / "journal"
    *_, last = (record for record in open_journal(journal) if record.has_decided)
    assert last.keyframe.added["site-clock"].origin == origin
    assert set(last.requests[0].target.tolist()) == {1_600_000}

    assert main(["replay", str(journal), "--cpu-policy", str(path)]) == 0
    shown = capsys.readouterr()
    assert "decisions of site-clock are the same, byte for byte" in shown.out and shown.err == ""

    target = tmp_path / "out.csv"
    path.unlink()  # a table needs no code
    assert main(["replay", str(journal), "--export", str(target)]) == 0
    with target.open() as file:
        assert "the site's clock" in {row["reason"] for row in csv.DictReader(file)}


def test_a_journal_does_not_start_the_file_that_it_names(tmp_path, capsys):
    path = write(tmp_path)
    run(tmp_path, str(path), 1.0)
    capsys.readouterr()
    assert main(["replay", str(tmp_path / "journal")]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.endswith(f"which a journal does not start by itself: --cpu-policy {path}\n")


def test_no_name_in_a_journal_starts_a_file_whatever_domain_it_is_of(tmp_path, capsys):
    run(tmp_path, "fixed-cpu", 1.0)
    journal, started = tmp_path / "journal", tmp_path / "started"
    path = write(tmp_path, f"open({str(started)!r}, 'w')\n{GOOD}".replace('"cpu", "one', '"uncore", "one'))
    uncore = {"name": "uncore/package_00_die_00/max_khz", "domain": "uncore", "low": 800_000, "high": 2_400_000}

    def with_a_file(tree):
        tree["config"]["policies"] = {"uncore": {"name": str(path)}}
        tree["layout"]["ranges"] = [uncore]

    shutil.copytree(journal, tmp_path / "other")
    alter(tmp_path / "other", with_a_file)
    assert main(["replay", str(tmp_path / "other")]) == 1
    assert capsys.readouterr().err.endswith(f"which a journal does not start by itself: --policy uncore={path}\n")
    alter(journal, lambda tree: tree["policies"] and tree["policies"][0].__setitem__(0, str(path)))
    assert main(["replay", str(journal), "--export", str(tmp_path / "out.csv")]) == 0
    assert main(["why", "--journal", str(journal)]) == 0
    assert not started.exists()
    assert main(["replay", str(tmp_path / "other"), "--policy", f"uncore={path}"]) == 1  # one knob more than recorded
    assert started.exists()
    capsys.readouterr()
    for option in (["--policy", f"fpga={path}"], ["--policy", "uncore=fixed"], ["--cpu-policy", str(path)]):
        assert option[-1] in complaint(capsys, "replay", str(journal), *option)


def test_other_code_than_was_recorded_is_compared_and_named(tmp_path, capsys):
    path = write(tmp_path)
    run(tmp_path, str(path), 1.0)
    (tmp_path / "new").mkdir()
    other = write(tmp_path / "new", instead("params.khz)", "params.khz + 100_000)"))
    assert main(["replay", str(tmp_path / "journal"), "--cpu-policy", str(other)]) == 1
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert "site-clock: run " in shown.err and "was recorded with other code" in shown.err
    assert str(path) in shown.err and str(other) in shown.err
    assert "site-clock.target[0]: recorded 1400000, replayed 1500000" in shown.out


def test_a_journal_of_policies_that_ship_takes_no_file_and_has_the_bytes_that_it_had(tmp_path, capsys):
    run(tmp_path, "fixed-cpu", 1.0)
    journal = tmp_path / "journal"
    assert main(["replay", str(journal), "--cpu-policy", str(write(tmp_path))]) == 1
    assert "was recorded with fixed-cpu, which is no file: leave out --cpu-policy" in capsys.readouterr().err
    first = (journal / "journal-00000001.seg").read_bytes()[len(MAGIC) :]
    length, _, _ = HEADER.unpack_from(first)
    payload = first[HEADER.size : HEADER.size + length]
    keyframe = next(iter(open_journal(journal))).keyframe
    assert "added" not in msgspec.msgpack.decode(zlib.decompress(payload))
    assert encode_keyframe(keyframe) == payload


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return State(state.periods + 1)", "1 / (3 - state.periods); return State(state.periods + 1)",
         ":21: ZeroDivisionError: division by zero"),
        ("return State(0)", "return layout.nothing", ":16: AttributeError: 'Layout' object has no attribute 'nothing'"),
        ("return State(state.periods + 1), R", "return R", ":18: decide did not return (state, Request)"),
        ("target = np.full(len(layout.cpus)", "target = np.full(3", ":18: decide returned a target that is no array"),
        ("params.khz)", "-1)", ":18: decide returned a target below 0: -1"),
        ("free.reason, ", "free.reason + np.uint8(1), ", ":18: decide returned the reason 1, and there are 1"),
        ("free.reason, ", "free.target, ", ":18: decide returned a reason that is no array of 12 uint8: int64"),
    ],
)  # fmt: skip
def test_a_policy_that_fails_at_work_ends_the_run_in_one_line_with_every_knob_restored(tmp_path, old, new, said):
    path = write(tmp_path, instead(old, new))
    with pytest.raises(ExtensionFailedError) as caught:
        run(tmp_path, str(path))  # which looks at the knob that it leaves
    assert str(caught.value).startswith(f"{path}{said}")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 1


def test_a_service_with_a_policy_that_fails_ends_as_with_wrong_settings_and_is_not_started_again(
    tmp_path, capsys, monkeypatch
):
    path = write(tmp_path, instead("return State(0)", "return layout.nothing"))
    machine = load_machine("taurus")
    with InProcess(Twin(machine, load_workload("hpl", machine, duration_s=1.0))) as node:
        monkeypatch.setattr("nodectl.commands.run.system_ports", lambda: node.ports)
        monkeypatch.setattr("nodectl.commands.run.open_writer", lambda *_: None)  # its process would see this machine
        arguments = ["run", "--mode", "optimize", "--state-dir", str(tmp_path), "--gpu-policy", "none"]
        line = complaint(capsys, *arguments, "--cpu-policy", str(path))
    assert line.endswith("correct this policy or choose another") and ":16: AttributeError" in line


def test_a_state_that_no_journal_can_keep_costs_the_journal_and_not_the_run(tmp_path):
    path = write(tmp_path, instead("return State(0)", "return {1, 2}").replace("State(state.periods + 1)", "state"))
    said = run(tmp_path, str(path), 1.0)
    assert "journal stopped: site-clock: a policy's state has a set, which a journal cannot store" in said


def test_two_files_of_one_name_cannot_be_distinguished_by_a_journal_and_are_refused(tmp_path):
    paths = []
    for folder, side in (("a", "cpu"), ("b", "gpu")):
        (tmp_path / folder).mkdir()
        paths.append(write(tmp_path / folder, instead('"cpu", "one', f'"{side}", "one')))
    settings = tmp_path / "nodectl.toml"
    settings.write_text("[cpu_policy]\nname = 'a/mine.py'\n[gpu_policy]\nname = 'b/mine.py'\n")
    with pytest.raises(ConfigError, match=r"nodectl.toml:4: .*b/mine.py: the file of the CPU policy has the same name"):
        configure(settings, {})
    paths[1].rename(tmp_path / "b" / "yours.py")
    settings.write_text("[cpu_policy]\nname = 'a/mine.py'\n[gpu_policy]\nname = 'b/yours.py'\n")
    assert configure(settings, {}).gpu_policy.name == str(tmp_path / "b" / "yours.py")
