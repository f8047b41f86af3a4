"""Manual pages: ``nodectl(1)``, ``clusterctl(1)``, ``nodectl.toml(5)``, ``cluster.toml(5)``, ``nodectl-hook(8)``, in
roff (man(7)); and the page of all commands in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click
import msgspec

import cluster_agent.cli
import nodectl.cli
from cluster_agent.hook import build_hook
from cluster_agent.serve.config import DEFAULT_CONFIG, Settings
from docs.generator.page_text import page, paragraph, table
from docs.generator.settings_reference import tables
from foundation import __version__
from foundation.shell.command_line import LazyCommands
from nodectl.config import DEFAULT_PATH, Config


@dataclass(frozen=True, slots=True)
class Program:
    """A program, its settings, and where they are."""

    name: str
    group: LazyCommands
    settings: type[msgspec.Struct]
    file: str
    path: str


PROGRAMS: Final = (
    Program("nodectl", nodectl.cli.commands, Config, "nodectl.toml", DEFAULT_PATH),
    Program("clusterctl", cluster_agent.cli.clusterctl, Settings, "cluster.toml", DEFAULT_CONFIG),
)

STATUS: Final = "0: success. 1: a run failed, or a check did not hold. 2: wrong use; nothing was started."


def manual_pages() -> dict[str, str]:
    """The five manual pages and ``reference/commands.md``."""
    found = {"reference/commands.md": _commands_page(), "man/nodectl-hook.8": _hook_page()}
    for program in PROGRAMS:
        found[f"man/{program.name}.1"] = _program_page(program)
        found[f"man/{program.file}.5"] = _file_page(program)
    return found


def commands_of(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by what is typed, in the order of ``--help``."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands_of(command, f"{path} {name}")


def usage(path: str, command: click.Command) -> str:
    """What is typed, as ``--help`` begins."""
    return " ".join([path, *command.collect_usage_pieces(click.Context(command))])


def options(command: click.Command) -> Iterator[tuple[str, str]]:
    """Each option as it is typed, and its help with the default."""
    context = click.Context(command)
    for parameter in command.params:
        if (record := parameter.get_help_record(context)) and not getattr(parameter, "hidden", False):
            yield record[0], re.sub(r"\s+", " ", record[1])


def _commands_page() -> str:
    parts = [STATUS]
    for program in PROGRAMS:
        parts.append(f"## {program.name}")
        for path, command in commands_of(program.group, program.name):
            parts += [f"### {path}", f"`{usage(path, command)}`", paragraph(_help(command))]
            if rows := [(f"`{typed}`", text) for typed, text in options(command)]:
                parts.append(table(("option", "meaning"), rows))
    return page("Commands", *parts)


def _help(command: click.Command) -> str:
    return (command.help or "").replace("\b", "").split("\f")[0]


def _program_page(program: Program) -> str:
    other = "clusterctl" if program.name == "nodectl" else "nodectl"
    lines = [
        *_head(program.name, 1, paragraph(program.group.help or "").rstrip(".")),
        ".SH SYNOPSIS",
        f".B {program.name}",
        _roff("COMMAND [OPTIONS] [ARGUMENTS]"),
        ".SH DESCRIPTION",
        _roff(paragraph(program.group.help or "")),
        ".SH COMMANDS",
    ]
    for path, command in commands_of(program.group, program.name):
        lines += [f".SS {_roff(usage(path, command))}", _roff(paragraph(_help(command)))]
        for typed, text in options(command):
            lines += [".TP", f".B {_roff(typed)}", _roff(text or "-")]
    completion = f'eval "$(_{program.name.upper()}_COMPLETE=bash_source {program.name})"'
    lines += [
        ".SH SHELL COMPLETION",
        _roff("In ~/.bashrc (for zsh and fish: zsh_source, fish_source):"),
        ".PP", ".nf", _roff(completion), ".fi",
        ".SH EXIT STATUS", _roff(STATUS),
        ".SH FILES", ".TP", f".I {_roff(program.path)}", f"Settings; see {program.file}(5).",
        ".SH SEE ALSO", f".BR {program.file} (5),", f".BR {other} (1)",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _file_page(program: Program) -> str:
    lines = [
        *_head(program.file, 5, f"settings of {program.name}"),
        ".SH DESCRIPTION",
        _roff(
            f"TOML, by default {program.path}. The unit of a number is in its key. {program.name} config check tries"
            " the file without starting anything, and says file, line, key and what is wrong."
        ),
    ]
    for one in tables(program.settings):
        lines += [f".SH {_roff(f'[{one.name}]' if one.name else 'ABOVE ALL TABLES')}", _roff(one.meaning)]
        for row in one.settings:
            notes = f"Default: {row.default}." + (f" Allowed: {row.allowed}." if row.allowed else "")
            lines += [".TP", f".B {_roff(row.key)}", _roff(f"{row.meaning} {notes}".replace("`", ""))]
    lines += [".SH SEE ALSO", f".BR {program.name} (1)"]
    return "\n".join(lines) + "\n"


def hook_usage() -> list[str]:
    """The lines that ``nodectl-hook --help`` prints, of its source."""
    text = (build_hook.ROOT / "csrc" / "main.c").read_text()
    block = text[text.index("USAGE[] =") : text.index('";', text.index("USAGE[] =")) + 1]
    return "".join(re.findall(r'"(.*)"', block)).replace("\\n", "\n").splitlines()


def _hook_page() -> str:
    """``nodectl-hook(8)``, by what the program itself prints."""
    first, _, *rest = hook_usage()
    synopsis, _, what = first.partition(": ")
    at = rest.index("")
    lines = [
        *_head("nodectl-hook", 8, what.split(",")[0]),
        ".SH SYNOPSIS", _roff(synopsis),
        ".SH DESCRIPTION", _roff(what[:1].upper() + what[1:] + "."), _roff(" ".join(rest[at + 1 :])),
        ".SH OPTIONS",
    ]  # fmt: skip
    for option, text in _options_of(rest[:at]):
        lines += [".TP", f".B {_roff(option)}", _roff(text)]
    lines += [
        ".SH EXIT STATUS",
        _roff(
            "1: with --if-late requeue, when the caps are not in force in time or nobody answers; Slurm then requeues"
            " the job. 2: wrong use, outside of Slurm. 0: all else."
        ),
        ".SH SEE ALSO", ".BR clusterctl (1),", ".BR slurm.conf (5)",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _options_of(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Each option and its text, which may go on in further lines."""
    option, words = "", list[str]()
    for line in [*lines, "  --"]:
        if line.startswith("  --"):
            if option:
                yield option, " ".join(words)
            option, _, text = re.sub(r"^(--\S+(?: \S+)?) +", r"\1\t", line.strip()).partition("\t")
            words = [text]
        else:
            words.append(line.strip())


def _head(name: str, section: int, what: str) -> list[str]:
    return [
        f'.TH {name.upper()} {section} "" "nodectl {__version__}"',
        ".SH NAME",
        f"{_roff(name)} \\- {_roff(what[:1].lower() + what[1:])}",
    ]


def _roff(text: Any) -> str:
    """Text that roff prints as it stands."""
    escaped = str(text).replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
