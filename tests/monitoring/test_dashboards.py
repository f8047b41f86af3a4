"""The dashboards and rules in docs/monitoring: what their files have, and that they follow the metrics' names."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.commands import metrics
from docs.generator.monitoring import known, monitoring_files
from docs.generator.monitoring.dashboards import DASHBOARDS
from docs.generator.monitoring.grafana import UNITS
from docs.generator.monitoring.known import Metric, checked, of_nodes, of_partitions
from docs.generator.monitoring.rules import ALERTS, RECORDED
from tests.monitoring.prometheus import promtool

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docs" / "monitoring"
PAGE = (ROOT / "docs" / "dashboards.md").read_text()
STORIES = Path(__file__).parent / "stories.yml"
LOADED = [json.loads(path.read_text()) for path in sorted((FILES / "grafana").glob("*.json"))]


def test_the_files_are_what_the_generator_makes_of_the_metrics_of_today() -> None:
    made = monitoring_files()
    assert {path: (ROOT / "docs" / path).read_text() for path in made} == made, "python -m docs.generator"
    generated = {f"docs/{path}" for path in made}
    by_hand = {"docs/monitoring/grafana/provisioning.yml"}
    found = {path.relative_to(ROOT).as_posix() for path in FILES.rglob("*.*")}
    assert found == generated | by_hand


@pytest.mark.parametrize(("family", "name"), [("OTHERS", "job_power_watts"), ("FAMILIES", "knobs")])
def test_a_metric_that_is_renamed_stops_the_generator_with_the_place_of_the_old_name(
    family: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed = {f"{name}_now" if one == name else one: what for one, what in getattr(known, family).items()}
    monkeypatch.setattr(known, family, renamed)
    with pytest.raises(ValueError, match=rf"(?:panel|recorded).*: no metric is called \w+_{name} .*{name}_now"):
        monitoring_files()


def test_a_label_that_a_metric_has_lost_stops_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, text, _ = metrics.OTHERS["job_node_info"]
    monkeypatch.setitem(metrics.OTHERS, "job_node_info", (kind, text, ("job", "node")))
    with pytest.raises(ValueError, match=r"dashboard nodectl-job.*clusterctl_job_node_info has no label jobid"):
        monitoring_files()


def test_a_query_must_name_what_is_there() -> None:
    names = {"clusterctl_up": Metric("gauge", "", ()), "clusterctl_alarm": Metric("gauge", "", ("kind",))}
    checked("here", 'sum(clusterctl_up{partition=~"$partition"}) + clusterctl_alarm{kind!="a=b"}', names, ["a:b:c"])
    checked("here", "a:nodectl_b:sum", names, ["a:nodectl_b:sum"])
    for wrong in ("sum(up)", "clusterctl_gone", "a:clusterctl_up:sum", 'clusterctl_up{kind="x"}'):
        with pytest.raises(ValueError, match=r"^here: "):
            checked("here", wrong, names, [])


def test_every_metric_is_told_apart_from_prometheus_own_labels() -> None:
    """A label ``job`` or ``instance`` of ours would come out of a scrape as ``exported_job``."""
    taken = {"job", "instance", "partition"}
    assert {name: taken & set(one.labels) for name, one in (of_nodes() | of_partitions()).items()
            if taken & set(one.labels)} == {}  # fmt: skip


def test_a_counter_says_whether_it_survives_a_restart() -> None:
    joules = {name: one.help for name, one in of_partitions().items() if name.endswith("joules_total")}
    assert len(joules) == 4
    silent = [name for name, text in joules.items() if not re.search(r"Begins at 0 with|goes on after a restart", text)]
    assert silent == []


def test_there_are_four_dashboards_whose_addresses_stay() -> None:
    names = ("site", "partition", "node", "job")
    assert [one.uid for one in DASHBOARDS] == [f"nodectl-{name}" for name in names]
    assert {one["uid"] for one in LOADED} == {f"nodectl-{name}" for name in names}
    variables = {one["uid"]: [each["name"] for each in one["templating"]["list"]] for one in LOADED}
    assert variables == {
        "nodectl-site": ["datasource"],
        "nodectl-partition": ["datasource", "partition"],
        "nodectl-node": ["datasource", "partition", "node"],
        "nodectl-job": ["datasource", "partition", "job"],
    }


@pytest.mark.parametrize("dashboard", LOADED, ids=[one["uid"] for one in LOADED])
def test_a_dashboard_has_the_structure_that_grafana_reads(dashboard: dict[str, Any]) -> None:
    assert (dashboard["schemaVersion"], "id" in dashboard) == (39, False)
    panels = dashboard["panels"]
    numbers = [panel["id"] for panel in panels]
    assert numbers == list(range(1, len(panels) + 1))
    assert len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["type"] in ("stat", "state-timeline", "table", "timeseries"), "no panel of an older Grafana"
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEFGH"[: len(panel["targets"])])
        for override in panel["fieldConfig"]["overrides"]:
            column = override["matcher"]["options"]
            legends = {target["legendFormat"] for target in panel["targets"]}
            by = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", str(panel["targets"])))))
            assert column in legends | by, "an override of a column that is not there"
            assert all(each["value"] in UNITS for each in override["properties"] if each["id"] == "unit")


def spaces(panel: dict[str, Any]) -> set[tuple[int, int]]:
    at = panel["gridPos"]
    return set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))


@pytest.mark.parametrize("dashboard", LOADED, ids=[one["uid"] for one in LOADED])
def test_panels_lie_on_the_grid_and_none_over_another(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        own = spaces(panel)
        assert max(x for x, _ in own) < 24 and not own & taken, panel["title"]
        taken |= own


def values_of(node: Any, key: str) -> list[Any]:
    """All values of this key, however deep."""
    if isinstance(node, dict):
        own = [node[key]] if key in node else []
        return own + [each for value in node.values() for each in values_of(value, key)]
    return [each for value in node for each in values_of(value, key)] if isinstance(node, list) else []


@pytest.mark.parametrize("dashboard", LOADED, ids=[one["uid"] for one in LOADED])
def test_a_dashboard_names_no_data_source_of_one_site(dashboard: dict[str, Any]) -> None:
    sources = values_of(dashboard, "datasource")
    assert len(sources) > 20 and all(one == {"type": "prometheus", "uid": "${datasource}"} for one in sources)
    assert not re.search(r"https?://|\b\d+\.\d+\.\d+\.\d+", json.dumps(dashboard))
    used = set(re.findall(r"(?<!\$)\$(?!_)(\w+)", " ".join(values_of(dashboard, "expr"))))
    assert used <= {each["name"] for each in dashboard["templating"]["list"]}


def test_every_address_of_a_dashboard_is_one_that_is_there() -> None:
    variables = {one["uid"]: {f"var-{each['name']}" for each in one["templating"]["list"]} for one in LOADED}
    links = [url for one in LOADED for url in values_of(one["panels"], "url")]
    texts = [PAGE, *links, *(alert.page for alert in ALERTS)]
    found = [match for text in texts for match in re.findall(r"/d(?:-solo)?/([\w-]+)(?:/\w+)?(\?[^`\s|]*)?", text)]
    assert len(found) > 20
    for uid, query in found:
        assert set(re.findall(r"var-\w+", query)) <= variables[uid], (uid, query)


def test_the_panels_that_the_page_gives_to_open_ondemand_are_those_it_says() -> None:
    ((cpu, memory),) = re.findall(r"panels: \{ cpu: (\d+), memory: (\d+) \}", PAGE)
    (node,) = (one for one in LOADED if one["uid"] == "nodectl-node")
    titles = {panel["id"]: panel["title"] for panel in node["panels"]}
    assert (titles[int(cpu)], titles[int(memory)]) == ("Power and caps", "What bounds it")
    assert f"panelId={cpu}&var-node" in PAGE


def test_prometheus_finds_no_fault_with_the_rules() -> None:
    said = promtool("check", "rules", "--lint-fatal", *sorted((FILES / "prometheus").glob("*.yml")))
    assert f"{len(ALERTS)} rules found" in said and f"{len(RECORDED)} rules found" in said


def test_every_alert_comes_in_its_story_and_only_then() -> None:
    text = STORIES.read_text()
    assert set(re.findall(r"alertname: (\w+)", text)) == {one.name for one in ALERTS}
    assert len(re.findall(r"exp_alerts: \[\]", text)) >= 5, "what is no fault raises no alarm"
    assert promtool("test", "rules", STORIES.name, cwd=STORIES.parent).count("SUCCESS") == 1
