"""The clusters of a log: ``LOG.machines.tsv`` next to ``LOG.swf`` or ``LOG.swf.gz``.

MetaCentrum's logs come with such a table. Tabs separate its columns, and the first line names them: ``cluster``,
``nodes`` (how many), ``cores_per_node``, and if known ``mem_kb`` (of a node) and ``speed``, which must be 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cluster_agent.cluster import MOST_OF_NODE, MOST_PROCESSORS, Machine, NodeGroup, Topology
from cluster_agent.workloads.swf import TraceError
from cluster_agent.workloads.text_tables import text_of

ENDING: Final = ".machines.tsv"
KIB_PER_GIB: Final = 1 << 20
MOST_CLUSTERS: Final = 62
"""Ours: the engine has a bit for each."""
MOST_NODES: Final = 1 << 20
"""Ours: no machine has more; each takes memory in a replay."""


def table_of(path: str) -> str | None:
    """The table next to the log, if there is one."""
    for ending in (".gz", ".bz2", ".xz", ".swf"):
        path = path.removesuffix(ending)
    found = path + ENDING
    return found if Path(found).is_file() else None


def read_clusters(path: str) -> Machine:
    """The machine of the table, each cluster a group of nodes without watts. ``TraceError`` names the line."""
    text, sha256 = text_of(path)
    lines = [(at, line.split("\t")) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
    names = [name.strip() for name in lines[0][1]] if lines else []
    if missing := [name for name in ("cluster", "nodes", "cores_per_node") if name not in names]:
        raise TraceError(f"{path}:1: no column {missing[0]}; name the columns, separated by tabs")
    groups = [_group(f"{path}:{at}", names, cells) for at, cells in lines[1:]]
    if not groups:
        raise TraceError(f"{path}: no cluster in it; add a line for each")
    _check(path, groups)
    return Machine(Path(path).name.removesuffix(ENDING), tuple(groups), Topology(), {}, sha256=sha256)


def _check(path: str, groups: list[NodeGroup]) -> None:
    known = [group.name for group in groups]
    if again := [name for at, name in enumerate(known) if name in known[:at]]:
        raise TraceError(f"{path}: the cluster {again[0]!r} is there twice; give each a name of its own")
    if len(groups) > MOST_CLUSTERS:
        raise TraceError(f"{path}: {len(groups)} clusters are more than {MOST_CLUSTERS}")
    if (nodes := sum(group.count for group in groups)) > MOST_NODES:
        raise TraceError(f"{path}: {nodes} nodes are more than {MOST_NODES}")


def _group(where: str, names: list[str], cells: list[str]) -> NodeGroup:
    if len(cells) != len(names):
        raise TraceError(f"{where}: it has {len(cells)} of {len(names)} columns: complete it, separated by tabs")
    row = {name: cell.strip() for name, cell in zip(names, cells, strict=True)}
    if row.get("speed", "1") not in ("1", "1.0", ""):
        raise TraceError(f"{where}: speed {row['speed']}: clusters of other speeds are not modelled; write 1")
    if not row["cluster"].isidentifier():
        raise TraceError(f"{where}: a cluster cannot be called {row['cluster']!r}; give letters and digits")
    count, cores = (_number(where, row, name, MOST_PROCESSORS) for name in ("nodes", "cores_per_node"))
    most_kib = MOST_OF_NODE * KIB_PER_GIB
    memory_kib = _number(where, row, "mem_kb", most_kib) if row.get("mem_kb") else most_kib
    return NodeGroup(count, cores, name=row["cluster"], memory_gb=memory_kib / KIB_PER_GIB)


def _number(where: str, row: dict[str, str], name: str, most: int) -> int:
    text = row[name]
    if not (text.isascii() and text.isdecimal() and len(text) < 19 and 0 < int(text) <= most):
        raise TraceError(f"{where}: {name} cannot be {text!r}: give a whole number from 1 to {most}")
    return int(text)
