"""Text from elsewhere on terminals and in logs: nothing of it acts, and nothing of it is lost."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundation.shell import command_line
from foundation.shell.errors import NodectlError
from foundation.shell.notify import Notifier
from foundation.shell.plain_text import echo, json_text, plain
from foundation.shell.text_table import render

ROOT = Path(__file__).parents[2]

HOSTILE = "\x1b]0;owned\x07\x1b[2J\n<0>clusterctl serve: all is well\r\x9b31m\u202eW 01\u2028"
SHOWN = "\\x1b]0;owned\\x07\\x1b[2J\\n<0>clusterctl serve: all is well\\r\\x9b31m\\u202eW 01\\u2028"


def test_what_acts_on_a_terminal_is_shown_as_its_escape_and_all_else_as_it_is():
    assert plain(HOSTILE) == SHOWN
    assert plain("Größe 5 µm, 水, ✓") == "Größe 5 µm, 水, ✓"


@given(st.text(st.characters(codec=None)))
def test_a_plain_line_is_printable_whatever_it_was(text):
    assert plain(text).isprintable()


@given(st.recursive(st.text() | st.integers(-9, 9), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_keeps_the_data_and_a_terminal_can_show_it(value):
    for indent in (0, 2):
        text = json_text(value, indent)
        assert json.loads(text) == value
        assert text.replace("\n", "").isprintable()
    assert "\n" not in json_text(value)


def test_a_cell_of_a_table_stays_in_its_place(capsys):
    assert render(("name", "why"), [(HOSTILE, "a"), ("n1", "b")]).split("\n")[1] == f"{SHOWN}  a"
    echo("job 1", f"  name  {HOSTILE}")
    assert capsys.readouterr().out == f"job 1\n  name  {SHOWN}\n"


def test_an_error_with_text_from_elsewhere_is_one_line_that_does_nothing(capsys):
    class Failing(command_line.LazyCommands):
        def main(self, *arguments: object, **options: object) -> None:
            raise NodectlError(f"n0: {HOSTILE}")

    assert command_line.call(Failing("nodectl", table={}), "nodectl", ["x"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.rstrip("\n").isprintable()


def in_the_journal(code: str) -> str:
    """What this code writes to a stderr that leads to the journal."""
    reading, writing = os.pipe()
    found = os.fstat(writing)
    environment = os.environ | {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
    subprocess.run([sys.executable, "-c", code], stderr=writing, env=environment, check=True)
    os.close(writing)
    with os.fdopen(reading) as file:
        return file.read()


def test_in_the_journal_only_we_choose_the_priority_of_a_line():
    code = f"from foundation.shell.log import logger; log = logger('clusterctl serve'); log({HOSTILE!r})"
    assert in_the_journal(code) == f"clusterctl serve: {SHOWN}\n"


def test_alarms_and_errors_are_errors_in_the_journal_and_all_else_is_not():
    code = "from foundation.shell.log import complain, logger; log = logger('clusterctl serve');"
    code += "log('ALARM: a'); log('the alarm is over: a'); complain('nodectl run', 'no\\n<0>b')"
    assert in_the_journal(code).splitlines() == [
        "<3>clusterctl serve: ALARM: a", "clusterctl serve: the alarm is over: a", "<3>nodectl run: no <0>b",
    ]  # fmt: skip


def test_text_from_elsewhere_gives_systemd_no_orders(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")}).send("READY=1", "STATUS=capped\nMAINPID=1")
        assert systemd.recv(100) == b"READY=1\nSTATUS=capped\\nMAINPID=1"


PRINTS = {
    "foundation/shell/plain_text.py", "foundation/shell/log.py",
    "foundation/shell/command_line.py",  # click's help
    "cluster_agent/hook/build_hook.py", "nodectl/build_restorer.py",  # a step of the package build
    "nodectl/progress.py",  # a file of ours, in C
}  # fmt: skip


def test_commands_print_only_what_was_made_plain():
    """A new ``click.echo`` or ``print`` must be a decision."""
    found = set()
    for package in ("foundation", "nodectl", "cluster_agent"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "click.echo", "sys.stdout.write"):
                    found.add(file.relative_to(ROOT).as_posix())
    assert found == PRINTS


def test_top_shows_brackets_as_brackets():
    top = pytest.importorskip("cluster_agent.commands.top", reason="pip install 'nodectl[cli]'")
    from rich.text import Text

    (cell,) = top._safe((f"[bold]{HOSTILE}[/bold]",))
    assert Text.from_markup(cell).plain == f"[bold]{SHOWN}[/bold]"
