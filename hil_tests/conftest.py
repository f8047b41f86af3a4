"""Runs each scenario on every rig, or on those named by ``--rig``, and prints the table with ``--hil-table``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hil_tests.rig import Ability, Rig
from hil_tests.rigs import RIGS
from hil_tests.slots import SLOTS
from hil_tests.table import Table
from tests.conftest import pytest_runtest_makereport

__all__ = ["pytest_runtest_makereport"]  # in CI a tool that can be installed must not be missing


def pytest_addoption(parser: pytest.Parser) -> None:
    names = [rig.name for rig in RIGS]
    parser.addoption("--rig", action="append", choices=names, help=f"run on this rig only: {', '.join(names)}")
    parser.addoption("--hil-table", action="store_true", help="print which scenario passes on which rig")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*abilities): abilities that this scenario needs of a rig")
    if config.getoption("--hil-table"):
        config.pluginmanager.register(Table([rig.name for rig in RIGS]), "hil-table")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "rig" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--rig")
        rigs = [rig for rig in RIGS if not chosen or rig.name in chosen]
        metafunc.parametrize("rig", rigs, ids=[rig.name for rig in rigs], indirect=True)


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """A running rig, with work of the mean class on all cores."""
    kind: type[Rig] = request.param
    request.node.user_properties.append(("rig", kind.name))
    needs = {Ability(ability) for marker in request.node.iter_markers("needs") for ability in marker.args}
    for ability in needs & kind.cannot.keys():
        pytest.skip(kind.cannot[ability])
    slots = SLOTS.get(request.node.originalname, 0)
    if kind.most_slots is not None and slots > kind.most_slots:
        pytest.skip(f"takes more than the {kind.most_slots} slots that fit here")
    missing = kind.missing()
    if missing:
        pytest.skip(missing)
    one = kind(tmp_path)
    one.has_bypass = Ability.BYPASS in needs
    one.start()
    yield one
    one.stop()
