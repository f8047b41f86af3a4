"""Energy counters: wraps, late and absurd readings, MMIO twins, locks, and zones for root only."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmu.decode import decode
from pmu.instruments import rapl
from pmu.layout import EnergyZone, Layout
from pmu.readings import GPU_FIELDS, RAW_MISSING, Quality, RawSweep
from pmu.system import OsFiles
from tests.pmu.trees import POWERCAP, grow, limit, package, type_tree

RANGE_UJ = 262_143_328_850  # Intel client and server packages of 61 uJ per count
MAX_W = 1000.0


def energy(
    before: int, after: int, elapsed_s: float = 0.1, range_uj: int = RANGE_UJ, never_idle: bool = False
) -> tuple[float, Quality]:
    zone = EnergyZone("zone", "intel-rapl:0", "package" if never_idle else "core", 0, range_uj, int(MAX_W * 1e6))
    layout = Layout((), (), (), (), 0, (), (zone,), ())
    sweeps = [
        RawSweep(time_ns, np.zeros((0, 0), np.int64), np.array([uj]), np.zeros((0, len(GPU_FIELDS)), np.int64))
        for time_ns, uj in ((0, before), (round(elapsed_s * 1e9), after))
    ]
    sample = decode(layout, *sweeps)
    return float(sample.energy_j[0]), Quality(sample.energy_quality[0])


def test_joules_are_the_step_of_the_counter() -> None:
    assert energy(1_000_000, 21_000_000) == (20.0, Quality.MEASURED)


def test_a_wrap_is_added_once() -> None:
    joules, quality = energy(RANGE_UJ - 5_000_000, 15_000_000)
    assert joules == pytest.approx(20.0) and quality is Quality.WRAPPED


@given(
    start=st.integers(0, RANGE_UJ - 1),
    power_w=st.floats(0.0, MAX_W),
    elapsed_s=st.floats(0.001, 60.0),
)
def test_any_interval_within_one_wrap_gives_its_energy_back(start: int, power_w: float, elapsed_s: float) -> None:
    drawn_uj = int(power_w * elapsed_s * 1e6)
    joules, quality = energy(start, (start + drawn_uj) % RANGE_UJ, elapsed_s)
    assert joules == pytest.approx(drawn_uj * 1e-6)
    assert quality is (Quality.WRAPPED if start + drawn_uj >= RANGE_UJ else Quality.MEASURED)


@given(start=st.integers(0, RANGE_UJ - 1), turns=st.integers(1, 5), power_w=st.floats(1.0, MAX_W))
def test_a_reading_later_than_the_zone_takes_to_wrap_is_stale_and_never_above_the_truth(
    start: int, turns: int, power_w: float
) -> None:
    elapsed_s = max(turns * RANGE_UJ * 1e-6 / power_w, RANGE_UJ * 1e-6 / MAX_W * 1.001)
    drawn_uj = int(power_w * elapsed_s * 1e6)
    joules, quality = energy(start, (start + drawn_uj) % RANGE_UJ, elapsed_s)
    assert quality is Quality.STALE
    assert joules <= drawn_uj * 1e-6 + 1e-6


def test_a_step_backwards_that_is_no_wrap_is_missing() -> None:
    joules, quality = energy(200_000_000_000, 100_000_000_000)  # as a wrap: 162 kJ in 0.1 s
    assert np.isnan(joules) and quality is Quality.MISSING
    joules, quality = energy(100, 50, range_uj=0)
    assert np.isnan(joules) and quality is Quality.MISSING


def test_a_step_beyond_any_power_is_missing_and_not_counted() -> None:
    joules, quality = energy(0, 5_000_000_000)
    assert np.isnan(joules) and quality is Quality.MISSING


@pytest.mark.parametrize("absurd", [RAW_MISSING, -1, RANGE_UJ + 1, 2**63 - 1])
def test_a_value_that_the_counter_cannot_have_is_missing(absurd: int) -> None:
    for before, after in ((absurd, 1_000_000), (1_000_000, absurd)):
        joules, quality = energy(before, after)
        assert np.isnan(joules) and quality is Quality.MISSING


def test_a_package_that_draws_nothing_is_stuck_but_an_idle_uncore_is_not() -> None:
    joules, quality = energy(7, 7, never_idle=True)
    assert np.isnan(joules) and quality is Quality.STALE
    assert energy(7, 7, never_idle=False) == (0.0, Quality.MEASURED)
    assert energy(7, 7, elapsed_s=0.001, never_idle=True) == (0.0, Quality.MEASURED), "the counter's own step"


SERVER: type_tree = (
    package("intel-rapl:0", "package-0", enabled=1, **limit(0, "long_term", 150_000_000))
    | package("intel-rapl:0:0", "dram")
    | package("intel-rapl:1", "package-1", enabled=1, **limit(0, "long_term", 150_000_000))
    | package("intel-rapl:1:0", "dram")
    | {f"{POWERCAP}/intel-rapl/enabled": 1}
)


def test_sub_zones_are_named_after_their_package(tmp_path: Path) -> None:
    zones = rapl.find(grow(tmp_path, SERVER)).zones
    assert [(z.name, z.path, z.kind, z.package) for z in zones] == [
        ("package-0", "intel-rapl:0", "package", 0),
        ("package-0/dram", "intel-rapl:0:0", "dram", 0),
        ("package-1", "intel-rapl:1", "package", 1),
        ("package-1/dram", "intel-rapl:1:0", "dram", 1),
    ]


@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [("package-2-die-1", "package", 2), ("psys", "psys", 0), ("core", "core", 0), ("platform", "psys", 0)],
)
def test_the_kind_of_a_zone_follows_its_name(tmp_path: Path, name: str, kind: str, number: int) -> None:
    (zone,) = rapl.find(grow(tmp_path, package("intel-rapl:0", name))).zones
    assert (zone.kind, zone.package) == (kind, number)


def test_the_memory_mapped_twin_is_read_once_and_its_limits_are_its_own(tmp_path: Path) -> None:
    twin = package("intel-rapl-mmio:0", "package-0", enabled=1, **limit(0, "long_term", 28_000_000))
    files = grow(tmp_path, package("intel-rapl:0", "package-0", enabled=1, **limit(0, "long_term", 64_000_000)) | twin)
    found = rapl.find(files)
    assert [zone.path for zone in found.zones] == ["intel-rapl:0"]
    assert [(limit.interface, limit.limit_uw) for limit in found.limits] == [("msr", 64_000_000), ("mmio", 28_000_000)]
    (remark,) = (finding for finding in found.findings if "intel-rapl-mmio:0" in finding.name)
    assert remark.present and not remark.readable and "the same energy as intel-rapl:0" in remark.why


def test_a_machine_with_only_the_memory_mapped_interface_is_read_through_it(tmp_path: Path) -> None:
    found = rapl.find(grow(tmp_path, package("intel-rapl-mmio:0", "package-0")))
    assert [zone.path for zone in found.zones] == ["intel-rapl-mmio:0"]


def test_a_limit_whose_zone_reads_disabled_may_be_locked(tmp_path: Path) -> None:
    files = grow(tmp_path, package("intel-rapl:0", "package-0", enabled=0, **limit(0, "long_term", 150_000_000)))
    found = rapl.find(files)
    (finding,) = (finding for finding in found.findings if finding.kind == "limit")
    assert finding.locked and not finding.writable and "locked by the firmware" in finding.why


def test_amd_shows_energy_without_limits(tmp_path: Path) -> None:
    found = rapl.find(grow(tmp_path, package("intel-rapl:0", "package-0", enabled=0)))
    assert len(found.zones) == 1 and found.limits == ()
    assert any("AMD shows energy only" in finding.why for finding in found.findings)


class RefusingFiles(OsFiles):
    """A tree in which energy is for somebody else."""

    def read(self, path: str) -> str:
        if path.endswith("energy_uj"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().read(path)


def test_energy_for_root_only_is_explained(tmp_path: Path) -> None:
    grow(tmp_path, SERVER)
    found = rapl.find(RefusingFiles(str(tmp_path)))
    assert found.zones == ()
    finding = found.findings[0]
    assert finding.present and not finding.readable and "CVE-2020-8694" in finding.why


def test_energy_that_is_no_number_is_explained(tmp_path: Path) -> None:
    found = rapl.find(grow(tmp_path, package("intel-rapl:0", "package-0", energy_uj="absurd")))
    assert found.zones == () and "has no number" in found.findings[0].why


def test_no_powercap_tree_is_one_finding(tmp_path: Path) -> None:
    (finding,) = rapl.find(OsFiles(str(tmp_path))).findings
    assert not finding.present and "no powercap" in finding.why


@pytest.mark.parametrize(
    ("kind", "stated", "expected_w"),
    [("package", 0, 1000), ("package", 500, 2000), ("dram", 0, 500), ("psys", 0, 10000)],
)
def test_the_most_a_zone_can_draw_comes_from_its_limits_or_its_kind(
    tmp_path: Path, kind: str, stated: int, expected_w: float
) -> None:
    more: dict[str, Any] = limit(0, "long_term", stated * 1_000_000) if stated else {}
    (zone,) = rapl.find(grow(tmp_path, package("intel-rapl:0", f"{kind}-0", **more))).zones
    assert rapl.max_power_w(zone) == pytest.approx(expected_w)


def test_a_zone_from_an_older_journal_has_the_bound_of_its_kind() -> None:
    assert rapl.max_power_w(EnergyZone("package-0", "intel-rapl:0", "package", 0, RANGE_UJ)) == 1000.0


def test_zones_of_one_name_are_all_read(tmp_path: Path) -> None:
    """Each socket may have a psys, and a package two controllers of memory: only another interface repeats energy."""
    tree = package("intel-rapl:0", "package-0") | package("intel-rapl:0:0", "dram") | package("intel-rapl:0:1", "dram")
    tree |= package("intel-rapl:1", "psys") | package("intel-rapl:2", "package-1") | package("intel-rapl:3", "psys")
    found = rapl.find(grow(tmp_path, tree))
    assert [(zone.path, zone.kind) for zone in found.zones] == [
        ("intel-rapl:0", "package"), ("intel-rapl:0:0", "dram"), ("intel-rapl:0:1", "dram"), ("intel-rapl:1", "psys"),
        ("intel-rapl:2", "package"), ("intel-rapl:3", "psys"),
    ]  # fmt: skip
    names = [zone.name for zone in found.zones]
    assert names[1:4] == ["package-0/dram", "package-0/dram-intel-rapl:0:1", "psys"] and len(set(names)) == 6


def test_the_dies_of_a_package_are_zones_of_it(tmp_path: Path) -> None:
    names = [f"package-{socket}-die-{die}" for socket in (0, 1) for die in (0, 1)]
    trees = [package(f"intel-rapl:{at}", name) for at, name in enumerate(names)]
    found = rapl.find(grow(tmp_path, {path: text for tree in trees for path, text in tree.items()}))
    assert [(zone.name, zone.kind, zone.package) for zone in found.zones] == list(
        zip(names, ["package"] * 4, [0, 0, 1, 1], strict=True)
    )


def test_zones_that_a_container_hides_are_explained(tmp_path: Path) -> None:
    (tmp_path / POWERCAP.lstrip("/")).mkdir(parents=True)
    (tmp_path / POWERCAP.lstrip("/") / "intel-rapl:0").symlink_to("../../devices/virtual/powercap/intel-rapl:0")
    (finding,) = rapl.find(OsFiles(str(tmp_path))).findings
    assert not finding.present and "container" in finding.why
