"""What `clusterctl oar install` writes at a site with OAR, and how all of it is taken away again.

Two scripts in a folder of ours, a block of two lines in ``oar.conf`` that has OAR run them, and two admission rules in
OAR's database, which admit job types of ours. A setting that the site has already stays the site's: its own script must
then call ours. ``remove`` leaves files and rules as they were before.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cluster_agent.errors import ClusterError
from cluster_agent.slurm.config_block import FOLDER, FileChange, read_conf, text_of, with_block, without_block
from cluster_agent.slurm.site_files import HOOK, RUN
from cluster_agent.slurm.slurm_programs import last_line, run

MARK: Final = "nodectl: written by `clusterctl oar install"
SCRIPTS: Final = {"SERVER_PROLOGUE_EXEC_FILE": "server-prologue", "SERVER_EPILOGUE_EXEC_FILE": "server-epilogue"}
CLUSTER: Final = "oar"
"""OAR has no name of its own for itself."""

MARGIN_S: Final = 20
"""Ours: how much longer than the wait for caps a script may take at most, since it asks OAR and the nodes."""

SITE_LIMIT_S: Final = 60
"""OAR's own limit of such a script, where SERVER_PROLOGUE_EPILOGUE_TIMEOUT sets no other."""

TAGS: Final = ("memory", "mixed", "compute")
MODES: Final = ("monitor", "optimize", "off")
FIRST, LAST = -1, 1_000_000
"""Priorities of our rules: before and after those of a site, which OAR's own number from 1."""

_SHIPPED: Final = Path(__file__).parent / "hooks"
_RULE: Final = re.compile(r"^--- \((?:DISABLED/)?(-?[0-9]+)\) RULE #([0-9]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class OarChoices:
    """``place``: options of the hook that lead to the cluster agent; ``cluster``: the name of this OAR here."""

    wait_s: float = 5.0
    place: tuple[str, ...] = ()
    hook: str = HOOK
    with_nodes: bool = False
    cluster: str = CLUSTER


@dataclass(frozen=True, slots=True)
class RuleChange:
    """An admission rule before and after; None: there is none. ``number``: OAR's, empty for a new one."""

    number: str
    priority: int
    before: str | None
    after: str | None

    def diff(self) -> str:
        """As ``diff -u`` prints it."""
        label = f"admission-rule-{self.number or 'new'}"
        ends = [None if text is None else text + "\n" for text in (self.before, self.after)]
        return FileChange(Path(label), *ends).diff()

    def carry_out(self) -> None:
        """By OAR's own program, which reads a new text from a file as user oar."""
        if self.after is None:
            _rules("-d", self.number)
            return
        with tempfile.NamedTemporaryFile("w", suffix=".pl") as file:
            file.write(self.after + "\n")
            file.flush()
            os.chmod(file.name, 0o644)
            which = ("-m", self.number) if self.number else ("-n",)
            _rules(*which, "-r", file.name, "-P", str(self.priority), "-Y")


def oar_setting(conf: str, name: str) -> str | None:
    """The last value of a setting in the text of an ``oar.conf``, without our block; None: it is not set."""
    found = re.findall(rf"^{name}=[ \t]*(?:\"([^\"\n]*)\"|'([^'\n]*)'|([^#\n]*?))[ \t]*(?:#.*)?$",
                       without_block(conf), re.MULTILINE)  # fmt: skip
    return next(filter(None, found[-1]), "") if found else None


def read_oar_conf(path: Path) -> str:
    """The text of ``oar.conf``."""
    return read_conf(path, "OAR")


def site_limit_s(conf: str) -> int:
    """How long a script may take before OAR stops its queues."""
    with contextlib.suppress(ValueError):
        return int(oar_setting(conf, "SERVER_PROLOGUE_EPILOGUE_TIMEOUT") or SITE_LIMIT_S)
    return SITE_LIMIT_S


def oar_taken(conf: str) -> list[str]:
    """Settings that ours would need and the site has already, a line each that says what to do."""
    return [
        f'{name} is {value} already: let it end with `exec {FOLDER}/{script} "$1"` of this folder'
        for name, script in SCRIPTS.items()
        if (value := oar_setting(conf, name))
    ]


def files_to_install(path: Path, choices: OarChoices) -> list[FileChange]:
    """What changes, for the ``oar.conf`` at ``path``. Nothing is written."""
    conf, folder = read_oar_conf(path), path.parent / FOLDER
    text = _script(conf, choices)
    changes = [FileChange(folder / script, text_of(folder / script), text) for script in SCRIPTS.values()]
    lines = [f'{name}="{folder / script}"\n' for name, script in SCRIPTS.items() if not oar_setting(conf, name)]
    changes.append(FileChange(path, conf, with_block(conf, lines, "clusterctl oar install; clusterctl oar remove")))
    return [change for change in changes if change.before != change.after]


def files_to_remove(path: Path) -> list[FileChange]:
    """What changes when all of ours is taken away."""
    conf = read_oar_conf(path)
    scripts = [path.parent / FOLDER / script for script in SCRIPTS.values()]
    ours = [FileChange(file, text, None) for file in scripts if (text := text_of(file)) is not None and MARK in text]
    changes = [FileChange(path, conf, without_block(conf)), *ours]
    return [change for change in changes if change.before != change.after]


def rules_to_install(with_modes: bool) -> list[RuleChange]:
    """The two rules, as far as OAR has others of ours or none."""
    wanted = [(FIRST, _rule("types-aside.pl", with_modes)), (LAST, _rule("types-again.pl", with_modes))]
    there = our_rules()
    changes = [
        RuleChange(there[at][0] if at < len(there) else "", priority, there[at][1] if at < len(there) else None, text)
        for at, (priority, text) in enumerate(wanted)
    ]
    extra = [RuleChange(number, 0, text, None) for number, text in there[len(wanted) :]]
    return [change for change in [*changes, *extra] if change.before != change.after]


def rules_to_remove() -> list[RuleChange]:
    """All of ours."""
    return [RuleChange(number, 0, text, None) for number, text in our_rules()]


def our_rules() -> list[tuple[str, str]]:
    """Number and text of the rules that are ours, in OAR's order. ``ClusterError`` if OAR's database is silent."""
    shown = _rules("-S", "-f")
    heads = list(_RULE.finditer(shown))
    found = []
    for head, after in zip(heads, [*heads[1:], None], strict=True):
        text = shown[head.end() + 1 : after.start() if after else len(shown)].rstrip("\n").removesuffix("\n---")
        if text.startswith(f"# {MARK}"):
            found.append((int(head[1]), head[2], text.rstrip("\n")))
    return [(number, text) for _, number, text in sorted(found)]


def _rules(*words: str) -> str:
    done = run(["oaradmissionrules", *words], "OAR's database", package="oar-server")
    if done.returncode:
        raise ClusterError(f"oaradmissionrules failed: {last_line(done.stderr, done.stdout)}")
    return done.stdout.decode("utf-8", "surrogateescape")


def _rule(name: str, with_modes: bool) -> str:
    kinds = {"nodectl": TAGS} | ({"bdpo": MODES} if with_modes else {})
    admitted = [f"{kind}=(?:{'|'.join(words)})" for kind, words in kinds.items()]
    words = {
        "@KINDS@": "|".join(kinds),
        "@WORDS@": " ".join(kinds),
        "@ADMITTED@": "|".join(admitted),
        "@NAMES@": ", ".join(f"{kind}={word}" for kind, words in kinds.items() for word in words),
    }
    return _filled(name, words).rstrip("\n")


def _script(conf: str, choices: OarChoices) -> str:
    words = {
        "@HOOK@": _perl(choices.hook),
        "@WAIT@": f"{choices.wait_s:g}",
        "@LIMIT@": f"{choices.wait_s + MARGIN_S:.0f}",
        "@CLUSTER@": _perl(choices.cluster),
        "@RUN@": _perl(RUN),
        "@WITH_NODES@": str(int(choices.with_nodes)),
        "@PLACE@": ", ".join(map(_perl, choices.place)),
        "@SSH@": _perl(oar_setting(conf, "OPENSSH_CMD") or "ssh -p 6667"),
    }
    return _filled("server-hook", words)


def _perl(text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{quoted}'"


def _filled(name: str, words: dict[str, str]) -> str:
    text = (_SHIPPED / name).read_text()
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def limits(conf: str, wait_s: float) -> Sequence[str]:
    """A line if OAR would stop its queues before our scripts have ended."""
    limit_s, needed_s = site_limit_s(conf), wait_s + MARGIN_S
    if limit_s > needed_s:
        return ()
    return (
        f"SERVER_PROLOGUE_EPILOGUE_TIMEOUT is {limit_s} s and the scripts may take {needed_s:.0f}: OAR would stop its "
        "queues; raise it, or install with a shorter --wait",
    )  # fmt: skip
