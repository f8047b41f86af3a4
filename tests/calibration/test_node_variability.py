"""How nodes of one model differ: factors near the truth, outliers named, and sharers that make up for it."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest

from calibration.kernels.port import FMA, STREAM
from calibration.measure.node_session import open_session
from calibration.table.adaptive_sweep import Aim, Sweep
from calibration.table.finished_table import finished_table
from calibration.table.node_variability import VariabilityError, compared
from calibration.table.pstate_table import Table
from calibration.table.table_file import write_table
from cluster_agent.budget.sharers import registry
from cluster_agent.budget.sharers.even_out import even_out
from cluster_agent.budget.sharers.node_factors import read_factors
from cluster_agent.budget.sharers.view import Job, Tag, View
from cluster_agent.cli import main
from cluster_agent.errors import WrongUseError
from lab.emulated.emulated_kernels import emulated_kernels
from nodectl.calibrated.node_identity import identity
from twin.in_process_node import InProcess
from twin.machine import Machine, load_machine
from twin.physics.model import Twin

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SCALE = {"a0": 0.96, "a1": 0.99, "a2": 1.00, "a3": 1.01, "a4": 1.25}
"""What the cores of each node draw; nothing else differs."""


def hungry(factor: float) -> Machine:
    machine = load_machine("taurus")
    scaled = {name: getattr(machine.power, name) * factor for name in ("dynamic_w", "leak_w_per_v")}
    return msgspec.structs.replace(machine, power=msgspec.structs.replace(machine.power, **scaled))


def true_w(machine: Machine) -> float:
    """Mean over all clocks of the logarithm of what the node draws under ``fma`` on all cores."""
    twin = Twin(machine)
    emulated_kernels(twin).start(FMA, range(12))
    found = []
    for khz in machine.steps_khz[:-1]:
        for domain in range(2):
            twin.set_domain(domain, max_khz=khz)
        twin.advance(1.0)
        before_j = twin.node_j
        twin.advance(2.0)
        found.append(np.log((twin.node_j - before_j) / 2.0))
    return float(np.mean(found))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table]:
    at, found = tmp_path_factory.mktemp("nodes"), {}
    for name, factor in SCALE.items():  # one seed: other seeds have meters that are wrong by other amounts
        with (
            InProcess(Twin(hungry(factor), seed=1)) as node,
            open_session(node.ports, emulated_kernels(node.twin), str(at / name)) as session,
        ):
            sweep = Sweep(session, (FMA, STREAM), Aim(budget_s=45.0))
            sweep.run()
            found[name] = finished_table(sweep, identity(session.ports, session.found.layout), NOW)
            write_table(at / f"{name}.toml", found[name])
    return found


def test_factors_are_near_the_truth_and_the_hungry_node_is_named(tables: dict[str, Table]) -> None:
    found = compared(tables)
    logs = {name: true_w(hungry(factor)) for name, factor in SCALE.items()}
    middle = float(np.median(list(logs.values())))
    by_fma = compared({name: only_fma(table) for name, table in tables.items()}).nodes
    for one in found.nodes:
        (fma,) = (each for each in by_fma if each.node == one.node)
        assert fma.watts.value == pytest.approx(np.exp(logs[one.node] - middle), abs=0.012)
        assert abs(fma.watts.value - np.exp(logs[one.node] - middle)) <= 2 * fma.watts.half
        assert one.speed.value == pytest.approx(1.0, abs=0.01)
    assert {one.node: one.outlier[:5] for one in found.nodes if one.outlier} == {"a4": "draws"}
    assert found.is_emulated and found.watts_pct > 7 > 1 > found.speed_pct


def only_fma(table: Table) -> Table:
    return msgspec.structs.replace(table, points=tuple(point for point in table.points if point.kernel == "fma"))


def test_nodes_of_another_model_and_native_tables_are_not_compared(tables: dict[str, Table]) -> None:
    one, other = tables["a0"], tables["a1"]
    more = msgspec.structs.replace(other, identity=msgspec.structs.replace(other.identity, cores=24))
    with pytest.raises(VariabilityError, match="cores 24, a0 has 12: only nodes of one model are compared"):
        compared({"a0": one, "a1": more})
    native = msgspec.structs.replace(other, conditions=msgspec.structs.replace(other.conditions, is_emulated=False))
    with pytest.raises(VariabilityError, match="one is of an emulated node"):
        compared({"a0": one, "a1": native})
    with pytest.raises(VariabilityError, match="one table says nothing"):
        compared({"a0": one})
    later = msgspec.structs.replace(other, identity=msgspec.structs.replace(other.identity, firmware="2.0"))
    assert compared({"a0": one, "a1": later}).remarks == (f"a1: firmware 2.0, a0 has {one.identity.firmware or '?'}",)


def test_the_file_of_factors_is_what_the_sharers_read(tables: dict[str, Table], tmp_path: Path) -> None:
    for name, table in tables.items():
        write_table(tmp_path / f"{name}.toml", table)
    out = tmp_path / "factors.toml"
    files = [str(tmp_path / f"{name}.toml") for name in SCALE]
    assert main(["calibration", "compare", *files, "-o", str(out)]) == 0
    factors = read_factors(out)
    assert factors["a4"] > 1.05 and factors["a2"] == 1.0, "a factor within its interval of 1 counts as 1"
    out.write_text("[n0]\nwatts = 7.0\nhalf = 0.1\n")
    with pytest.raises(WrongUseError, match=r"not from 0\.5 to 2"):
        read_factors(out)
    assert main(["calibration", "compare", files[0], files[0]]) == 2


@pytest.mark.parametrize("sharer", ["fspc", "aapc", "minimal-slowdown"])
def test_under_one_budget_a_hungrier_node_of_a_job_gets_more_and_keeps_up_with_the_others(sharer: str) -> None:
    """Two nodes of one job, which is as slow as the slower one."""
    machines = [hungry(0.92), hungry(1.08)]
    logs = [true_w(machine) for machine in machines]
    factors = {name: float(np.exp(one - np.mean(logs))) for name, one in zip("ab", logs, strict=True)}
    rest_w = 100.0

    def slower(known: dict[str, float] | None) -> float:
        jobs = [Job("1", ["a", "b"], Tag.COMPUTE)]
        view = View.of(["a", "b"], np.full(2, 290_000), np.full(2, 160_000), jobs, None, known)
        shares = registry.choose(sharer).share(view, 2 * 180_000)
        caps_mw = even_out(view, shares)
        assert int(caps_mw.sum()) == int(shares.caps_mw.sum())
        return min(speed_under(machine, cap / 1000 - rest_w) for machine, cap in zip(machines, caps_mw, strict=True))

    assert slower(factors) > 1.02 * slower(None)


def speed_under(machine: Machine, packages_w: float) -> float:
    """Units per second of ``fma`` on all cores while RAPL keeps the packages at this cap."""
    twin = Twin(machine)
    port = emulated_kernels(twin)
    port.start(FMA, range(12))
    for number, zone in enumerate(machine.zones):
        if zone.kind == "package":
            twin.set_zone_limit(number, 0, round(packages_w / 2 * 1e6), 100_000, True)
    twin.advance(3.0)
    before = port.units_done()
    twin.advance(2.0)
    return (port.units_done() - before) / 2.0


@pytest.mark.parametrize("sharer", ["fspc", "aapc", "minimal-slowdown"])
def test_a_node_that_is_measured_gets_its_highest_cap_as_far_as_the_budget_has_it(sharer: str) -> None:
    names, tdp, mop = ["a", "b", "c"], np.full(3, 500_000), np.full(3, 150_000)
    jobs = [
        Job("1", ["a"], Tag.COMPUTE), Job("2", ["c"], Tag.MEMORY, full_power=True),
        Job("3", ["b"], Tag.MEMORY, full_power=True),
    ]  # fmt: skip
    shared = registry.choose(sharer).share
    for budget_mw, full in ((1_150_000, [2, 1]), (900_000, [2]), (799_000, [])):
        view, found = View.of(names, tdp, mop, jobs).at_full_power(budget_mw)
        assert found.tolist() == full
        caps = shared(view, budget_mw).caps_mw
        assert all(caps[at] == 500_000 for at in full) and int(caps.sum()) <= budget_mw and int(caps.min()) >= 150_000
