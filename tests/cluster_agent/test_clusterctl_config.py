"""`clusterctl config check`: what the cluster agent would do, or what is wrong and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_agent.cli import main

SETTINGS = """mode = "cap"
keys = "{at}/keys"
[budget]
w = 1000.0
[nodes]
tdp_w = 500.0
"""


def checked(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit status and the one line, without the directory."""
    file = tmp_path / "cluster.toml"
    file.write_text(text.replace("{at}", str(tmp_path)))
    capsys.readouterr()
    status = main(["config", "check", "--config", str(file)])
    captured = capsys.readouterr()
    line = captured.out + captured.err
    assert line.count("\n") == 1 and bool(captured.err) == (status == 2)
    return status, line.replace(f"{tmp_path}/", "").strip()


@pytest.fixture
def keys(tmp_path: Path) -> list[str]:
    at = ["--dir", str(tmp_path / "keys")]
    assert main(["keys", "new", "cluster", *at]) == main(["keys", "new", "n0", "--role", "node", *at]) == 0
    return at


def test_settings_that_are_right_are_said_in_one_line(
    tmp_path: Path, keys: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(tmp_path, SETTINGS, capsys) == (
        0,
        "cluster.toml: ok: caps nodes; budget 1000 W at the first start; 1 nodes may connect to tcp://0.0.0.0:7410;"
        " no jobs",
    )


def test_queues_of_nodes_that_are_allowed_or_of_a_partition_without_a_list_are_right(
    tmp_path: Path, keys: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    queues = "{at}/keys\"\n[jobs]\nqueues = 'day=n0'\n"
    assert checked(tmp_path, SETTINGS.replace('{at}/keys"\n', queues), capsys)[0] == 0
    text = SETTINGS.replace('{at}/keys"\n', queues.replace("keys", "none").replace("n0", "n7"))
    assert checked(tmp_path, "insecure = true\n" + text, capsys)[0] == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("w = 1000.0", "w = -1.0", "cluster.toml:4: budget.w: -1 W is negative"),
        ("w = 1000.0", "schedule = '{at}/week'", "cluster.toml:4: budget.schedule: week: cannot read the schedule"),
        ("/keys", "/none", "cluster.toml:2: keys: none/cluster.key: cannot read the key: No such file or directory"),
        (
            "[budget]",
            "[jobs]\nqueues = 'day=n[0-1] night=n[2-5]'\n[budget]",
            "cluster.toml:4: jobs.queues: n1 of queue day, n2 of queue night, n3 of queue night and 2 more are no nodes"
            " of this partition: correct the names, or allow the keys",
        ),
        (
            "[budget]",
            "[jobs]\nqueues = 'day night'\nwindows = 'nights=sat'\n[budget]",
            "cluster.toml:5: jobs.windows: no queue is called 'nights' (nearest: night)",
        ),
        ("[nodes]", "[nodez]", "cluster.toml:5: unknown key 'nodez' (nearest: nodes)"),
    ],
)
def test_what_is_wrong_is_one_line_with_file_and_line_and_status_2(
    tmp_path: Path, keys: list[str], capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    assert old in SETTINGS
    status, line = checked(tmp_path, SETTINGS.replace(old, new), capsys)
    assert status == 2
    assert line.startswith(f"clusterctl config: {said}")
