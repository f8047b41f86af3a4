"""The metrics of both programs, and whether a query names only these and their labels."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from cluster_agent.commands.metrics import BUDGET, GROUPS, NODES, OTHERS
from docs.generator.monitoring.grafana import Dashboard
from docs.generator.monitoring.rules import Alert, Recorded
from foundation.shell.errors import nearest
from nodectl.loop.metrics_page import FAMILIES

OF_TARGETS: Final = {"instance", "job", "node", "partition"}
"""Labels that Prometheus gives to all that it scrapes from a target, by its configuration (docs/dashboards.md)."""

_NAMED: Final = re.compile(r"(?<![\w:])((?:\w+:)?(?:nodectl|clusterctl)_\w+(?::\w+)?)(?:\{([^}]*)\})?")


class Metric(NamedTuple):
    """What a program says of one of its metrics."""

    kind: str
    help: str
    labels: tuple[str, ...]


def of_nodes() -> dict[str, Metric]:
    """By the name as it is scraped."""
    return {
        f"nodectl_{name}": Metric(kind, text, tuple(filter(None, labels.split(", "))))
        for name, (kind, text, labels) in FAMILIES.items()
    }


def of_partitions() -> dict[str, Metric]:
    """By the name as it is scraped: the Prometheus client adds _total to counters."""
    return {
        **{f"clusterctl_{one.name}": Metric("gauge", one.help, ()) for one in BUDGET},
        **{f"clusterctl_{one.name}": Metric("gauge", one.help, ("node",)) for one in NODES},
        **{f"clusterctl_{one.name}": Metric("gauge", one.help, ("group",)) for one in GROUPS},
        **{f"clusterctl_{name}{'_total' if kind == 'counter' else ''}": Metric(kind, text, labels)
           for name, (kind, text, labels) in OTHERS.items()},
    }  # fmt: skip


def checked(where: str, query: str, metrics: Mapping[str, Metric], recorded: Collection[str]) -> None:
    """``ValueError`` if the query names a metric or a recorded series that is not there, or a label that its metric
    has not. ``where`` the query is written, for the message."""
    found = list(_NAMED.finditer(query))
    if not found and "up{" not in query:
        raise ValueError(f"{where}: {query} names no metric")
    for match in found:
        name, selector = match[1], match[2] or ""
        if name not in metrics and name not in recorded:
            known = [*metrics, *recorded]
            raise ValueError(f"{where}: no metric is called {name}{nearest(name, known)}")
        labels = set(re.findall(r"(?:^|,)\s*(\w+)\s*[=!]", selector))
        wrong = labels - OF_TARGETS - set(metrics[name].labels if name in metrics else labels)
        if wrong:
            raise ValueError(f"{where}: {name} has no label {min(wrong)}")


def queries_of(
    dashboards: Iterable[Dashboard], recorded: Iterable[Recorded], alerts: Iterable[Alert]
) -> Iterator[tuple[str, str]]:
    """(where, query) of everything that is sent to Prometheus."""
    for one in dashboards:
        for variable in one.variables:
            yield f"dashboard {one.uid}, variable {variable.name}", variable.of
        for panel in one.panels:
            for target in panel.targets:
                yield f"dashboard {one.uid}, panel {panel.title!r}", target.query
    for rule in recorded:
        yield f"recorded {rule.name}", rule.query
    for alert in alerts:
        yield f"alert {alert.name}", alert.query
