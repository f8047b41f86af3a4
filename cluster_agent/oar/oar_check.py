"""What a site's OAR lacks to work next to the cluster agent: one line each, with what to do."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from cluster_agent.errors import ClusterError
from cluster_agent.fabric.ask import Place
from cluster_agent.oar.oar_files import MARGIN_S, SCRIPTS, limits, oar_setting, oar_taken, our_rules, read_oar_conf
from cluster_agent.oar.oar_queue import PACKAGE, read_oar
from cluster_agent.slurm.config_block import FOLDER, text_of
from cluster_agent.slurm.site_check import of_agent
from cluster_agent.slurm.slurm_programs import last_line, run


def oar_lacking(path: Path, hook: str, place: Place) -> list[str]:
    """For the ``oar.conf`` at ``path``; empty: all is there. ``WrongUseError`` if that cannot be read."""
    conf = read_oar_conf(path)
    lines = oar_taken(conf)
    lines += [
        f"{name} is not set: `clusterctl oar install`"
        for name, script in SCRIPTS.items()
        if not oar_setting(conf, name) and f'{name}="{path.parent / FOLDER / script}"' not in conf
    ]
    if found := re.search(r"^alarm\(([0-9]+)\);$", _script_at(path), re.MULTILINE):
        lines += limits(conf, int(found[1]) - MARGIN_S)
    if not os.access(hook, os.X_OK):
        lines.append(f"{hook} is no program: install the package clusterctl on this machine")
    try:
        read_oar("oar")
        if len(our_rules()) != 2:  # one before the site's, one after
            lines.append("OAR admits none of our job types: `clusterctl oar install`")
        theirs = oar_nodes()
    except ClusterError as error:
        lines.append(str(error))
        theirs = set()
    return lines + of_agent(theirs, place, "OAR", "oar-check")


def oar_nodes(oarnodes: str = "oarnodes") -> set[str]:
    """The network addresses of OAR's resources; ``ClusterError`` if it does not answer."""
    done = run([oarnodes, "-J"], "OAR's database", package=PACKAGE)
    if done.returncode:
        raise ClusterError(f"oarnodes failed: {last_line(done.stderr, done.stdout)}")
    try:
        rows = json.loads(done.stdout).values() if done.stdout.strip() else ()
        return {str(row["network_address"]) for row in rows if row["network_address"]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ClusterError(f"oarnodes -J printed what OAR 2.5.9 does not: {error}") from None


def _script_at(path: Path) -> str:
    return text_of(path.parent / FOLDER / SCRIPTS["SERVER_PROLOGUE_EXEC_FILE"]) or ""
