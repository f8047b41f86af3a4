"""Speeds of minimal-slowdown from the P-state table of a node that was calibrated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibration.table.pstate_table import SCHEMA, Conditions, Point, Quality, Table
from calibration.table.table_file import write_table
from cluster_agent.budget.sharers import registry
from cluster_agent.budget.sharers.calibrated_speed import tables_of
from cluster_agent.budget.sharers.view import Tag
from cluster_agent.errors import WrongUseError
from foundation.sealed_file import sealed
from nodectl.calibrated.node_identity import Identity
from tests.calibration.test_policy_values import KERNELS, table_points
from tests.cluster_agent.sharer_views import worked

WHO = Identity("Z80", "", 1, 8, 8, "", "", "")
IDLE_W = 110.0


def write(path: Path, points: list[Point]) -> Path:
    conditions = Conditions(True, "2026-11-25T00:00:00+00:00", 60.0, True, 30.0, 5.0, IDLE_W)
    write_table(path, Table(SCHEMA, "", WHO, conditions, Quality(1, 0, 1, 1.0, 1.0), {}, tuple(points)))
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "pstates.toml", table_points(KERNELS))


def test_each_tag_has_the_speeds_and_watts_that_were_measured(table: Path) -> None:
    models = tables_of(table)
    tdp_w = 60.0 + 140.0 + 10.0 + 80.0
    at_half = 60.0 + 140.0 * 0.25 + 10.0 + 80.0  # of the clock
    for tag, kernel in ((Tag.COMPUTE, "fma"), (Tag.MEMORY, "stream"), (Tag.MIXED, "mix-4")):
        beta = KERNELS[kernel][0]
        assert models[tag].speed[0] == models[tag].power[0] == 1.0
        assert models[tag].idle == pytest.approx(IDLE_W / tdp_w)
        assert models[tag].at(np.array([at_half / tdp_w]))[0] == pytest.approx(1 / (1 + beta), rel=0.01)


def test_the_sharer_slows_jobs_by_that_table(table: Path) -> None:
    nodes = worked()
    shares = registry.choose(f"minimal-slowdown:table={table}").share(nodes, 3_750_000)
    by_machine = registry.choose("minimal-slowdown:machine=curie").share(nodes, 3_750_000)
    assert shares.note == by_machine.note == ""
    assert np.isfinite(shares.speed).all() and not np.array_equal(shares.caps_mw, by_machine.caps_mw)


def test_without_a_mix_mixed_jobs_have_no_model(tmp_path: Path) -> None:
    few = {name: KERNELS[name] for name in ("stream", "fma")}
    assert set(tables_of(write(tmp_path / "t.toml", table_points(few)))) == {Tag.COMPUTE, Tag.MEMORY}


def test_a_table_that_cannot_serve_is_refused_in_one_line(table: Path, tmp_path: Path) -> None:
    no_meter = write(tmp_path / "n.toml", table_points(KERNELS, has_meter=False))
    other = tmp_path / "o.toml"
    other.write_text(sealed("a = 1\n"))
    table.write_text(table.read_text().replace("fma", "fmb"))
    for path, said in (
        (no_meter, "has no watts of the node and speeds of fma"),
        (other, "is no P-state table"),
        (table, "its sha256 differs"),
        (tmp_path / "none.toml", "cannot be read"),
    ):
        with pytest.raises(WrongUseError, match=said) as error:
            registry.choose(f"minimal-slowdown:table={path}")
        assert str(path) in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(WrongUseError, match="give one of the two"):
        registry.choose(f"minimal-slowdown:machine=curie,table={table}")
