"""What Prometheus reads of a node and of a partition, and what it alerts on."""

from __future__ import annotations

from collections.abc import Mapping

from docs.generator.monitoring.known import Metric, of_nodes, of_partitions
from docs.generator.monitoring.rules import ALERTS
from docs.generator.page_text import page, table

HEADS = ("metric", "kind", "meaning", "labels")


def metrics_pages() -> dict[str, str]:
    """``reference/metrics.md``."""
    head = (
        "A value that is not known is left out; a counter starts again with its process, unless its meaning says"
        " otherwise. How to switch them on: [operations.md](../operations.md). Dashboards and alerts made of them:"
        " [dashboards.md](../dashboards.md)."
    )
    alerts = [(f"`{one.name}`", one.severity, f"`{one.query}` for {one.lasts}", one.remedy) for one in ALERTS]
    return {
        "reference/metrics.md": page(
            "Metrics", head, "## `nodectl metrics`", table(HEADS, _rows(of_nodes())),
            "## `clusterctl metrics`", table(HEADS, sorted(_rows(of_partitions()))),
            "## Alerts", table(("alert", "severity", "when", "what to do"), alerts),
        )
    }  # fmt: skip


def _rows(metrics: Mapping[str, Metric]) -> list[tuple[str, str, str, str]]:
    return [(f"`{name}`", one.kind, one.help, ", ".join(one.labels)) for name, one in metrics.items()]
