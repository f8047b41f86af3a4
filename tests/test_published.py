"""Every printed table has its rows in the repository and prints what they say; some are computed again here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.publishing import pages
from benchmarks.publishing.command import compared, state
from benchmarks.publishing.measurements import MEASUREMENTS
from benchmarks.publishing.pages import PAGES, differences, files, places
from benchmarks.publishing.rows import FOLDER, ROOT, Published, code_files, code_hash, meaning

COMPUTED = [name for name in MEASUREMENTS if not Published.read(FOLDER / f"{name}.csv").is_transcribed]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_table_of_a_page_names_its_rows_and_prints_what_they_say(page: Path) -> None:
    tables = list(places(page))
    assert tables and [str(place) for place in tables if not (FOLDER / place.file).is_file()] == []
    assert [line for place in tables for line in differences(place)] == []


def test_every_file_of_rows_is_named_by_a_page() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(files())


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.stem)
def test_rows_say_how_they_were_made(path: Path) -> None:
    published = Published.read(path)
    assert "benchmarks" in published.header["made by"] or "clusterctl" in published.header["made by"]
    if published.is_transcribed:
        assert published.header["note"] and "code" not in published.header  # unproven, and it says why
    else:
        assert len(published.header["code"]) == 16
        assert ("data" in published.header) == bool(MEASUREMENTS[path.stem].data)
    assert path.stat().st_size < 150_000


@pytest.mark.parametrize("name", COMPUTED)
def test_rows_computed_again_are_those_that_were_published(name: str) -> None:
    measurement = MEASUREMENTS[name]
    if not measurement.has_data:
        pytest.skip("needs ../shared/data next to the checkout")
    rows = [row for row in Published.read(FOLDER / f"{name}.csv").rows if measurement.sample(row)]
    assert rows
    assert [(list(row.values()), wrong) for row, wrong in compared(measurement, rows) if wrong] == []


def test_a_figure_that_differs_from_its_row_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    heading = "| cap | | kills | node-hours lost | kWh wasted | jobs ended | node-hours done | EcoJob slowdown |"
    lines = ["<!-- rows: benchmarks/published/eco_killer.csv -->", "", heading, "|---|---|---|---|---|---|---|---|"]
    for cells in MEASUREMENTS["eco_killer"].tables[""](Published.read(FOLDER / "eco_killer.csv").rows)[1:]:
        lines.append(f"| {' | '.join(cells)} |")
    page.write_text("\n".join(lines))
    (place,) = places(page)
    assert differences(place) == []
    page.write_text("\n".join(lines).replace("| 10 |", "| 11 |"))
    (place,) = places(page)
    assert len(differences(place)) == 1


def test_a_row_that_comes_out_otherwise_is_found_and_a_change_below_what_is_printed_is_not() -> None:
    measurement = MEASUREMENTS["eco_killer"]
    row = next(row for row in Published.read(FOLDER / "eco_killer.csv").rows if row["policy"] == "fcfs-killer")
    ((_, wrong),) = compared(measurement, [row | {"kills": str(int(row["kills"]) + 1)}])
    assert len(wrong) == 1 and wrong[0].startswith("kills is ")
    ((_, wrong),) = compared(measurement, [row | {"lost_node_h": str(float(row["lost_node_h"]) + 0.4)}])
    assert wrong == []


def test_rows_of_other_code_are_reported_and_no_error(tmp_path: Path) -> None:
    published = Published.read(FOLDER / "eco_killer.csv")
    path = tmp_path / "eco_killer.csv"
    assert state(path) == "missing"
    Published({**published.header, "code": code_hash(MEASUREMENTS["eco_killer"])}, published.rows).write(path)
    assert state(path) == "current"
    Published({**published.header, "code": "0" * 16}, published.rows).write(path)
    assert state(path) == "code changed"


def test_the_code_behind_rows_has_what_registries_load_and_what_is_written_in_c() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in code_files("benchmarks.eco_killer")}
    assert "cluster_agent/scheduler/policies/power_aware/eco.py" in found  # named by a string alone
    assert {"cluster_agent/machines/curie.toml", "benchmarks/eco_killer.py"} <= found
    assert any(name.startswith("cluster_agent/csrc/") for name in found)
    assert "benchmarks/rmap.py" not in found and "twin/physics/model.py" not in found


def test_a_comment_changes_no_hash_and_a_number_does(tmp_path: Path) -> None:
    def of(name: str, text: str) -> bytes:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}-{name}"
        path.write_text(text)
        return meaning(path)

    assert (
        of("a.py", '"""Old."""\nx = 1  # why\n')
        == of("a.py", '"""New."""\n# because\nx = 1\n')
        != of("a.py", "x = 2\n")
    )
    assert of("a.c", 'int x = 1; // "why\n') == of("a.c", '/* a "b" */ int x =\n 1;\n') != of("a.c", "int x = 2;\n")
    assert of("b.c", 'char *x = "/* 1 */";') != of("b.c", 'char *x = "/* 2 */";')
    assert of("a.toml", "x = 1 # why\n") == of("a.toml", "x = 1\n") != of("a.toml", "x = 2\n")
