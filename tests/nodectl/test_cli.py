"""The command line as a user meets it: messages, exit statuses, real processes and real signals."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from foundation.shell.settings import ConfigError
from nodectl.cli import COMMANDS, main
from nodectl.commands.run import configure
from tests.waiting import PATIENCE_S

NODECTL = (sys.executable, "-m", "nodectl.cli")
CLUSTERCTL = (sys.executable, "-m", "cluster_agent.cli")
RSS_LIMIT_KIB = 60 * 1024


def nodectl(*arguments: str, **given) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*NODECTL, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, **given)


def has_counters() -> bool:
    return json.loads(nodectl("doctor", "--json").stdout)["sensors"][0]["present"]


def complaint(capsys, *arguments: str) -> str:
    status = main(arguments)
    captured = capsys.readouterr()
    assert status == 2, captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""
    return captured.err.strip()


def test_a_setting_that_no_file_gives_names_the_file_that_is_not_there(monkeypatch):
    monkeypatch.setattr("nodectl.commands.run.DEFAULT_PATH", "/nowhere/nodectl.toml")
    with pytest.raises(ConfigError, match=r"^/nowhere/nodectl.toml \(which is not there\): cluster.tdp_w: is missing"):
        configure(None, {("cluster", "url"): ("--cluster", "tcp://h:7410"), ("mode",): ("--mode", "optimize")})


@pytest.mark.parametrize(
    ("program", "module", "said"),
    [
        (("nodectl", "demo"), "matplotlib", "nodectl demo: needs matplotlib: pip install 'nodectl[plots]'\n"),
        (("nodectl", "demo", "--scmi"), "matplotlib", "nodectl demo: needs matplotlib: pip install 'nodectl[plots]'\n"),
        (("nodectl", "demo"), "pynvml", "nodectl demo: needs pynvml: pip install 'nodectl[nvidia]'\n"),
        (
            ("nodectl", "demo"),
            "lab",
            "nodectl demo: needs the emulated node, which is not installed: install the package nodectl-twin\n",
        ),
        (("cluster_agent", "serve"), "zmq", "clusterctl serve: needs zmq: pip install 'nodectl[cluster]'\n"),
        (("cluster_agent", "keys", "list"), "zmq", "clusterctl keys: needs zmq: pip install 'nodectl[cluster]'\n"),
    ],
)
def test_an_extra_that_is_not_installed_is_named_before_anything_is_done(program, module, said):
    package, *command = program
    without = f"""
import sys
from importlib.abc import MetaPathFinder
class Hides(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Hides())
from {package}.cli import main
sys.exit(main({command!r}))
"""
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr, done.returncode) == ("", said, 1)


def test_help_lists_every_command(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name}" in shown for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rum"], "nodectl: no command 'rum' (nearest: run) (see `nodectl --help`)"),
        (["run", "--perod", "1s"], "nodectl run: No such option '--perod'."),
        (["run", "--period", "10xs"], "nodectl run: Invalid value for '--period': '10xs': unit 'xs' is not known"),
        (["run", "--period", "10"], "nodectl run: Invalid value for '--period': '10': has no unit, e.g. 100ms"),
        (["run", "--period", "soon"], "nodectl run: Invalid value for '--period': 'soon' is not a duration"),
        (["run", "--mode", "optimise"], "nodectl run: Invalid value for '--mode': 'optimise' is not one of"),
        (["run", "--period", "90s"], "nodectl run: --period: period_ms: 90000 ms is outside 1..60000"),
        (["run", "--cpu-policy", "fixd"],
         "nodectl run: --cpu-policy: no cpu policy is called 'fixd' (nearest: fixed-cpu)"),
        (["run", "--gpu-policy", "fixed:clock=1"],
         "nodectl run: --gpu-policy: fixed-gpu has no parameter 'clock' (nearest: clock_mhz)"),
        (["run", "--gpu-policy", "fixed:clock_mhz"], "nodectl run: --gpu-policy: 'clock_mhz' is not KEY=VALUE"),
        (["run", "--gpu-policy", "fixed:clock_mhz=fast"],
         "nodectl run: --gpu-policy: fixed-gpu: clock_mhz: expected a whole number, got text"),
        (["run", "--config", "/nowhere.toml"], "nodectl run: /nowhere.toml: cannot read the settings: No such file"),
        (["run", "--cpu-policy", "bdpo-cpu-bounded:bound=2"],
         "nodectl run: --cpu-policy: bdpo-cpu-bounded: bound must be in (0, 1)"),
        (["run", "--mode", "monitor", "--dry-run"],
         "nodectl run: --dry-run: dry_run: needs mode optimize: monitoring writes nothing anyway"),
        (["run", "--dry-run"], "nodectl run: --dry-run: dry_run: needs mode optimize"),
        (["replay"], "nodectl replay: Missing argument 'JOURNAL'"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_that_says_what_would_be_right(capsys, arguments, expected):
    assert complaint(capsys, *arguments).startswith(expected)


def test_an_option_overrules_the_file_and_each_mistake_names_its_own_place(tmp_path):
    file = tmp_path / "n.toml"
    file.write_text('mode = "optimize"\nperiod_ms = 50\n[journal]\nmax_bytes = 2000000\n')
    config = configure(file, {("period_ms",): ("--period", 20.0), ("journal", "dir"): ("--journal", "/j")})
    assert (config.mode, config.period_ms, config.journal.dir, config.journal.max_bytes) == (
        "optimize", 20.0, "/j", 2_000_000,
    )  # fmt: skip
    file.write_text("period_ms = 0.1\n")
    with pytest.raises(ConfigError, match=r"n\.toml:1: period_ms"):
        configure(file, {("mode",): ("--mode", "monitor")})
    with pytest.raises(ConfigError, match="--period: period_ms"):
        configure(file, {("period_ms",): ("--period", 0.2)})


def test_a_dry_run_in_the_file_does_not_keep_one_from_monitoring(tmp_path):
    file = tmp_path / "n.toml"
    file.write_text('mode = "optimize"\ndry_run = true\n')
    assert configure(file, {}).dry_run
    assert not configure(file, {("mode",): ("--mode", "monitor")}).dry_run
    file.write_text("\ndry_run = true\n")
    with pytest.raises(ConfigError, match=r"n\.toml:2: dry_run: .*mode optimize"):
        configure(file, {})


def test_the_list_of_policies_says_that_the_sides_suffix_may_be_left_out(capsys):
    assert main(["policies"]) == 0
    assert "--gpu-policy fixed means fixed-gpu" in capsys.readouterr().out


def test_policies_are_listed_with_parameters_and_sources(capsys):
    assert main(["policies"]) == 0
    text = capsys.readouterr().out
    assert "bdpo-gpu  (gpu)" in text and "REGALE D2.3" in text and "clock_mhz=0" in text
    assert main(["policies", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert listed["fixed-gpu"]["params"] == {"clock_mhz": 0}
    assert listed["bdpo-cpu"]["domain"] == "cpu"


def test_a_run_around_a_command_ends_with_its_status_and_one_line_about_energy(tmp_path):
    done = nodectl("run", "--state-dir", str(tmp_path), "--", "sh", "-c", "echo out; exit 3")
    assert (done.returncode, done.stdout) == (3, "out\n")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("nodectl run: time 0.") and "not known: " in last


def test_a_command_killed_by_a_signal_gives_the_status_a_shell_would(tmp_path):
    assert nodectl("run", "--state-dir", str(tmp_path), "--", "sh", "-c", "kill -KILL $$").returncode == 137


def test_a_command_that_is_not_there_is_reported_as_by_a_shell(tmp_path):
    done = nodectl("run", "--state-dir", str(tmp_path), "--", "no-such-program")
    assert done.returncode == 127
    assert done.stderr.splitlines()[-1] == "nodectl run: no-such-program: no such command"
    assert nodectl("run", "--state-dir", str(tmp_path), "--", str(tmp_path)).returncode == 126


def test_options_after_the_command_are_the_commands_own(tmp_path):
    done = nodectl("run", "--state-dir", str(tmp_path), "--", "echo", "--json", "--period")
    assert done.stdout == "--json --period\n"


def test_the_command_does_not_inherit_what_the_agent_sets_for_itself(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = nodectl("run", "--state-dir", str(tmp_path), "--", "env", env=environment)
    assert "OPENBLAS_NUM_THREADS" not in done.stdout
    assert "NOTIFY_SOCKET" not in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        [*NODECTL, "doctor"], [*NODECTL, "policies", "--json"], [*NODECTL, "--help"],
        [*CLUSTERCTL, "policies", "--json"], [*CLUSTERCTL, "--help"],
    ],
)  # fmt: skip
def test_a_full_disk_is_one_line(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert done.stderr.endswith("cannot write: No space left on device\n") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [[*NODECTL, "scmi"], [*CLUSTERCTL, "keys"]])
def test_a_group_without_a_command_shows_its_help_as_wrong_use(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("Usage: ") and "\nCommands:\n" in done.stderr


def test_a_service_ends_cleanly_on_sigterm_and_its_summary_is_json_on_request(tmp_path):
    process = subprocess.Popen(
        [*NODECTL, "run", "--state-dir", str(tmp_path), "--period", "50ms", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    for _ in range(400):  # until it journals, however slowly this machine starts it
        if any(path.stat().st_size for path in tmp_path.rglob("journal/*")):
            break
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    summary = json.loads(out)
    assert summary["mode"] == "monitor" and summary["ticks"] >= 2
    assert summary["lateness"]["p50_ms"] >= 0


def test_a_run_of_a_given_duration_ends_by_itself(tmp_path):
    done = nodectl("run", "--state-dir", str(tmp_path), "--duration", "300ms", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["elapsed_s"] == pytest.approx(0.3, abs=0.15)


def test_the_resident_agent_is_small_and_one_thread(tmp_path):
    script = 'grep -E "VmHWM|Threads" /proc/$PPID/status'
    done = nodectl("run", "--state-dir", str(tmp_path), "--period", "10ms", "--", "sh", "-c", f"sleep 0.5; {script}")
    status = dict(line.split(":\t") for line in done.stdout.splitlines())
    assert int(status["VmHWM"].split()[0]) < RSS_LIMIT_KIB
    assert status["Threads"] == "1"


def test_the_resident_agent_carries_no_emulated_node_and_no_plotting():
    script = "import sys, nodectl.cli, nodectl.commands.run; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"twin", "matplotlib", "rich", "scipy", "pyarrow"} & set(loaded)


def test_on_a_machine_without_sensors_optimize_refuses_and_says_why(tmp_path):
    if has_counters():
        pytest.skip("this machine has hardware counters")
    done = nodectl("run", "--mode", "optimize", "--state-dir", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("nodectl run: cannot optimize this node: CPU counters (")
    assert done.stderr.count("\n") == 1


def test_a_broken_pipe_is_no_error():
    done = subprocess.run(
        f"{' '.join(NODECTL)} policies --json | head -c 1", shell=True, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[", "")


def test_the_list_of_commands_has_every_one_below_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    from cluster_agent.cli import COMMANDS, SECTIONS, main

    assert main(["--help"]) == 0
    shown = capsys.readouterr().out.partition("Options:")[2]
    lines = [line for line in shown.splitlines()[2:] if line]
    headings = [line.removesuffix(":") for line in lines if not line.startswith(" ")]
    assert headings == list(SECTIONS.values())
    assert [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "][-len(COMMANDS) :] == list(
        COMMANDS
    )
