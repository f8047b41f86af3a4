"""Grafana's dashboards and Prometheus' rules, made from the metrics' own names into ``docs/monitoring``.

A query is written as it is sent (``dashboards``, ``rules``); ``checked`` refuses one that names a metric which the
programs do not have, or a label which the metric has not. So whoever renames a metric cannot leave them behind.
"""

from __future__ import annotations

from docs.generator.monitoring.dashboards import DASHBOARDS
from docs.generator.monitoring.grafana import dashboard_json
from docs.generator.monitoring.known import checked, of_nodes, of_partitions, queries_of
from docs.generator.monitoring.rules import ALERTS, RECORDED, alerts_yaml, recorded_yaml


def monitoring_files() -> dict[str, str]:
    """The files below ``docs/monitoring``, by their paths below ``docs/``. ``ValueError`` for a query of a metric or
    label that is not there."""
    metrics, recorded = of_nodes() | of_partitions(), [rule.name for rule in RECORDED]
    for where, query in queries_of(DASHBOARDS, RECORDED, ALERTS):
        checked(where, query, metrics, recorded)
    made = {f"monitoring/grafana/{one.uid}.json": dashboard_json(one) for one in DASHBOARDS}
    return made | {
        "monitoring/prometheus/nodectl-alerts.yml": alerts_yaml(),
        "monitoring/prometheus/nodectl-recorded.yml": recorded_yaml(),
    }
