"""Every error message of the programs, found in the code: what is raised, with which exit status, and where.

A message says what is wrong, where, and what to do. What is filled in while a program runs stands in angle brackets.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from docs.generator.page_text import page, table

ROOT: Final = Path(__file__).parents[2]

AREAS: Final = {
    "foundation": "both programs",
    "nodectl": "nodectl: the node",
    "calibration": "nodectl calibrate",
    "cluster_agent": "clusterctl: partition, jobs, replays",
    "firmware_bridge": "nodectl scmi: controllers",
    "pmu": "reading instruments",
    "twin": "nodectl twin: the emulated node",
}

WRONG_USE: Final = ("UsageError", "ConfigError", "WrongUseError", "PolicyError", "ExtensionError", "BadParameter")
"""Errors with exit status 2; all others end with 1."""

SHORTEST: Final = 12
"""Characters of a message's own text: below it the message is somebody else's, passed on."""


def errors_pages() -> dict[str, str]:
    """``reference/errors.md``."""
    parts = []
    for package, title in AREAS.items():
        found: dict[tuple[str, str], set[str]] = defaultdict(set)
        for file in sorted((ROOT / package).rglob("*.py")):
            for name, message in messages(ast.parse(file.read_text())):
                found[message, "2" if name in WRONG_USE else "1"].add(file.relative_to(ROOT / package).as_posix())
        rows = [
            (message.replace("<", "\\<"), status, ", ".join(f"`{name}`" for name in sorted(files)))
            for (message, status), files in sorted(found.items(), key=lambda item: item[0][0].lower())
        ]
        parts += [f"## {title}", table(("message", "exit status", "from"), rows)]
    head = (
        "An error is one line: the command, then a message that says what is wrong, where, and what to do.\nExit status"
        " 2 is wrong use (nothing was started), 1 a run or check that failed. Angle brackets: what is filled in."
    )
    return {"reference/errors.md": page("Errors", head, *parts)}


def messages(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The name of each exception that is raised with a text of its own, and that text. Those of Python itself are for
    programmers."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call) or not node.exc.args:
            continue
        called = node.exc.func
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        own = _text(node.exc.args[0])
        if name.endswith(("Error", "Parameter")) and not hasattr(builtins, name) and len(_bare(own)) >= SHORTEST:
            yield name, " ".join(own.split())


def _text(node: ast.expr) -> str:
    """A string with what is filled in as <expression>; "" if it is no string that stands here."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.FormattedValue(value=value):
            return f"<{_filled_in(value)}>"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (_text(left) or "<...>") + (_text(right) or "<...>")
        case ast.IfExp(body=body, orelse=orelse):
            return " / ".join(filter(None, (_text(body), _text(orelse))))
    return ""


def _filled_in(value: ast.expr) -> str:
    """The last name of an expression: what a reader would call what stands there."""
    names = [node.attr if isinstance(node, ast.Attribute) else node.id for node in ast.walk(value)
             if isinstance(node, ast.Attribute | ast.Name)]  # fmt: skip
    return names[0].strip("_").replace("_", " ") if names else "..."


def _bare(text: str) -> str:
    """The text without what is filled in."""
    kept, depth = [], 0
    for sign in text:
        depth += (sign == "<") - (sign == ">")
        if depth == 0 and sign != ">":
            kept.append(sign)
    return "".join(kept).strip()
