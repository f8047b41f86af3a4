"""`nodectl config check`: what the agent would do, or what is wrong and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from foundation.wire.keys import KeyPair, write_pair
from nodectl.cli import main

PUBLIC, SECRET = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
MEMBER = """mode = "optimize"
[cluster]
url = "tcp://head:7410"
key = "{at}/node.key"
server_key = "{at}/cluster.pub"
tdp_w = 500.0
mop_w = 150.0
safe_w = 200.0
boot_w = 300.0
jobs = true
"""


def checked(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit status and the one line, without the directory."""
    file = tmp_path / "nodectl.toml"
    file.write_text(text.replace("{at}", str(tmp_path)))
    status = main(["config", "check", "--config", str(file)])
    captured = capsys.readouterr()
    line = captured.out + captured.err
    assert line.count("\n") == 1 and bool(captured.err) == (status == 2)
    return status, line.replace(f"{tmp_path}/", "").strip()


def test_settings_that_are_right_are_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path, "", capsys) == (0, "nodectl.toml: ok: monitor, every 100 ms")
    text = "mode = 'optimize'\n[caps]\nnode_w = 300\n[metrics]\nlisten = '127.0.0.1:9742'"
    assert checked(tmp_path, text, capsys) == (
        0,
        "nodectl.toml: ok: optimize, every 100 ms, bdpo-cpu-bounded and gpu-ladder and cap 300 W;"
        " metrics at http://127.0.0.1:9742/metrics",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("perid_ms = 5", "nodectl.toml:1: unknown key 'perid_ms' (nearest: period_ms)"),
        ("mode = 'optimize'\n[metrics]\nlisten = '9742'", "nodectl.toml:3: metrics.listen: '9742' is not HOST:PORT"),
        ("\nstate_dir = '/proc/nodectl'", "nodectl.toml:2: state_dir: /proc/nodectl: /proc is a file system"),
        (MEMBER, "nodectl.toml:4: cluster.key: node.key: cannot read the key: No such file or directory"),
    ],
)
def test_what_is_wrong_is_one_line_with_file_and_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    status, line = checked(tmp_path, text, capsys)
    assert status == 2
    assert line.startswith(f"nodectl config: {said}")


def test_a_member_of_a_cluster_needs_its_own_key_and_that_of_the_cluster_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pair(tmp_path / "node.key", KeyPair(PUBLIC, SECRET))
    status, line = checked(tmp_path, MEMBER, capsys)
    assert status == 2 and line.startswith("nodectl config: nodectl.toml:5: cluster.server_key: cluster.pub: cannot")
    (tmp_path / "cluster.pub").write_text(f"public = '{PUBLIC}'\n")
    status, line = checked(tmp_path, MEMBER, capsys)
    assert (status, line.partition("; ")[2]) == (0, "capped by tcp://head:7410, runs its jobs")
