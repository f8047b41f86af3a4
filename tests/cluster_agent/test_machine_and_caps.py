"""Machine and cap files, and what is said when they are wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster_agent.cap_steps import FOREVER_S, Cap, as_kept, read_caps
from cluster_agent.cluster import SHIPPED, Kept, load_machine, shipped_names
from cluster_agent.errors import WrongUseError
from cluster_agent.library.fitting import known_from_the_start

WITHOUT_FULL_LOAD = ["eurora"]
"""What its nodes draw at full load is not published."""


@pytest.mark.parametrize("name", WITHOUT_FULL_LOAD)
def test_a_machine_that_does_not_say_what_full_load_is_has_no_watts(name: str) -> None:
    assert not load_machine(name).has_watts
    with pytest.raises(WrongUseError, match=f"{name}: the machine has no watts; give busy_w"):
        _ = load_machine(name).full_w


@pytest.mark.parametrize("name", [name for name in shipped_names() if name not in WITHOUT_FULL_LOAD])
def test_every_shipped_machine_loads_and_draws_less_when_idle(name: str) -> None:
    machine = load_machine(name)
    assert machine.has_watts
    assert machine.idle_w < machine.full_w
    slowdowns = machine.slowdowns()
    assert slowdowns[0] == 1 and list(slowdowns) == sorted(slowdowns)


def test_curie_is_the_machine_of_the_thesis() -> None:
    curie = load_machine("curie")
    assert (curie.processors, curie.chassis, curie.racks) == (80640, 280, 56)
    assert curie.fixed_w == 69440 + 50400
    assert curie.full_w - curie.fixed_w == 1804320
    assert curie.slowdowns()[curie.node.frequency_mhz.index(2000)] == pytest.approx(1.294)
    assert curie.slowdowns("linpack")[-1] == 2.14


def test_nodes_and_cores_can_be_given_with_or_without_a_name() -> None:
    assert load_machine("curie:nodes=90").racks == 1
    assert load_machine("nodes=7,cores=3").processors == 21


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cury", "--machine cury: no machine is called 'cury' (nearest: curie); or give a file"),
        ("curie:nods=3", "--machine curie:nods=3: 'nods=3' is neither nodes=NUMBER nor cores=NUMBER"),
        ("nodes=0", "--machine nodes=0: nodes cannot be '0': give a number from 1"),
    ],
)
def test_a_wrong_machine_is_answered_in_one_line(text: str, message: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        load_machine(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("idle_w = 117", "idel_w = 117", ":10: unknown key 'idel_w' (nearest: idle_w)"),
        ("idle_w = 117", "idle_w = 'much'", ":10: nodes.idle_w: expected a number, got text"),
        ("off_w = 14", "off_w = 118", ":9: nodes.off_w: is above idle_w = 117"),
        ("2400, 2200", "2200, 2400", ":11: nodes.frequency_mhz: must begin at the highest and fall"),
        ("[358, 317", "[358", ":12: nodes.busy_w: has 7 values for the 8 of frequency_mhz"),
        ("linpack = 2.14", "linpack = 0.9", ":27: degradation.linpack: must be 1 or more"),
        ("linpack = 2.14", "linpack = nan", ":27: degradation.linpack: must be 1 or more"),
        ("[358, 317", "[nan, 317", ":12: nodes.busy_w: must be numbers of 0 or more"),
        ("[358, 317", "[inf, 317", ":12: nodes.busy_w: must be numbers of 0 or more"),
        ("off_w = 14", "off_w = 14\ngpu_w = nan", ":10: nodes.gpu_w: must be 0 or more"),
        ("off_w = 14", "off_w = 14\nmic_w = -1", ":10: nodes.mic_w: must be 0 or more"),
        ("off_w = 14", "off_w = 14\nrest_w = inf", ":10: nodes.rest_w: must be 0 or more"),
        ("off_w = 14", "off_w = 14\nmemory_gb = nan", ":10: nodes.memory_gb: must be 0 to 1048576"),
        ("off_w = 14", "off_w = 14\ngpus = -1", ":10: nodes.gpus: must be 0 to 1048576"),
    ],
)
def test_a_bad_machine_file_is_answered_with_file_line_and_key(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((SHIPPED / "curie.toml").read_text().replace(old, new, 1))
    with pytest.raises(WrongUseError) as caught:
        load_machine(str(path))
    assert str(caught.value) == f"{path}{message}"


def test_windows_and_steps_are_both_read(tmp_path: Path) -> None:
    path = tmp_path / "caps.csv"
    path.write_text("from_s,to_s,watts,announced_s\n# night\n10,20,1500.5,5\n20,30,900,20\n")
    assert read_caps(str(path)) == [Cap(10, 20, 1500.5, 5), Cap(20, 30, 900.0, 20)]
    path.write_text("from_s,watts\n0,100\n10,\n20,50\n")
    assert read_caps(str(path)) == [Cap(0, 10, 100.0), Cap(20, FOREVER_S, 50.0)]


@pytest.mark.parametrize(
    "text",
    [
        "sep=;\r\nfrom_s;watts\r\n0;100\r\n10;50\r\n",  # Excel, where a comma is the decimal point
        "from_s;watts\n0;100\n10;50\n",
        "from_s\twatts\n0\t100\n10\t50\n",  # copied from a sheet
        'from_s;watts\n"0";"100"\n10;50\n',
        "from_s,watts,,\n0,100,,\n,,,\n10,50,,\n",  # empty rows and columns of a sheet
        "# watts; by the hour\nfrom_s,watts\n0,100\n10,50\n",
    ],
)
def test_tables_of_spreadsheets_are_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "caps.csv"
    path.write_text(text)
    assert read_caps(str(path)) == [Cap(0, 10, 100.0), Cap(10, FOREVER_S, 50.0)]


def test_a_comma_as_decimal_point_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "caps.csv"
    path.write_text("from_s;watts\n0;100,5\n")
    with pytest.raises(WrongUseError, match=r":2: watts cannot be '100,5': a number is needed"):
        read_caps(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "from_s,to_s,watts\n10,20,5\n15,30,5\n",
            ":3: from_s 15 is before the end of the window above; sort or join them",
        ),
        ("from_s,watts\n10,5\n10,6\n", ":3: from_s 10 is not after that of the line above; sort the lines"),
        ("from_s,to_s,watts\n20,10,5\n", ":2: to_s 10 is not after from_s 20"),
        ("from_s,watts,announced_s\n5,1,9\n", ":2: announced_s 9 is after from_s 5"),
        ("from_s,watts\n0,many\n", ":2: watts cannot be 'many': a number is needed"),
        ("from_s,watts\n0\n", ":2: 1 values for the 2 columns of the first line"),
        ("when,what\n", ":1: the first line must be from_s,to_s,watts or from_s,watts[,announced_s]"),
    ],
)
def test_a_bad_cap_file_is_answered_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "caps.csv"
    path.write_text(text)
    with pytest.raises(WrongUseError) as caught:
        read_caps(str(path))
    assert str(caught.value) == f"{path}{message}"


def test_caps_are_kept_as_they_are_where_the_machine_file_says_nothing_else() -> None:
    assert load_machine("curie").kept == Kept()
    caps = [Cap(0, 10, 100.0), Cap(20, FOREVER_S, 50.0, 5)]
    assert as_kept(caps, 0.0, 0.0) == caps


def test_a_lower_cap_begins_a_settle_time_early_and_a_higher_one_when_it_comes() -> None:
    steps = [Cap(0, 100, 900.0), Cap(100, 200, 500.0), Cap(200, FOREVER_S, 700.0)]
    assert as_kept(steps, 10.5, 50.0) == [Cap(0, 89, 850.0), Cap(89, 200, 450.0), Cap(200, FOREVER_S, 650.0)]


def test_of_several_caps_within_a_settle_time_the_lowest_counts() -> None:
    steps = [Cap(0, 100, 900.0), Cap(100, 105, 700.0), Cap(105, 110, 500.0), Cap(110, FOREVER_S, 600.0)]
    assert as_kept(steps, 10.0, 0.0) == [Cap(0, 90, 900.0), Cap(90, 95, 700.0), Cap(95, 110, 500.0),
                                         Cap(110, FOREVER_S, 600.0)]  # fmt: skip


def test_a_cap_is_not_kept_before_it_is_known_nor_before_the_log_begins() -> None:
    assert as_kept([Cap(100, 200, 500.0, 95)], 10.0, 0.0) == [Cap(95, 200, 500.0, 95)]
    assert as_kept([Cap(5, 200, 500.0)], 10.0, 0.0) == [Cap(0, 200, 500.0)]


def test_caps_that_are_all_known_are_kept_less_what_idle_nodes_draw(tmp_path: Path) -> None:
    path, caps = tmp_path / "site.toml", tmp_path / "caps.csv"
    path.write_text(
        'name = "site"\nsummary = ""\n[[nodes]]\ncount = 4\ncores = 1\nidle_w = 30\n'
        "[kept]\nsettle_s = 2.5\nfixed_w = 50\nreserve_w = 20\ncounts_idle = true\n"
    )
    caps.write_text("from_s,watts\n0,900\n100,500\n")
    cap = known_from_the_start(str(caps), load_machine(str(path)))
    assert (cap.time_s, cap.watts) == ((0, 97), (900.0 - 70 - 120, 500.0 - 70 - 120))
    assert known_from_the_start("900", load_machine(str(path))).watts == (710.0,)
    assert known_from_the_start(None, load_machine(str(path))).watts == (float("inf"),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("settle_s = -1", "kept.settle_s: must be 0 or more"),
        ("settel_s = 1", "unknown key 'settel_s' (nearest: settle_s)"),
    ],
)
def test_what_is_wrong_about_how_a_budget_is_kept_is_said_with_its_line(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f'name = "site"\nsummary = ""\n[[nodes]]\ncount = 4\ncores = 1\n[kept]\n{text}\n')
    with pytest.raises(WrongUseError, match=f":7: .*{re.escape(problem)}"):
        load_machine(str(path))
