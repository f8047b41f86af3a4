"""`make bench` knows every measurement, and every measurement it knows is there."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import cpu_savings, gpu_savings, gpu_stage_clocks
from benchmarks.__main__ import NAMES
from benchmarks.scheduler_speed import executed
from twin.machine import load_machine

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("name", NAMES)
def test_a_measurement_can_be_run_by_its_name(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").main)


def test_no_measurement_is_forgotten() -> None:
    with_main = {path.stem for path in FOLDER.glob("*.py") if "\ndef main(" in path.read_text()}
    assert with_main - {"__main__"} == set(NAMES)


PAGES = sorted((FOLDER.parent / "docs").rglob("*.md"))
ROWS = sorted((FOLDER / "published").glob("*.csv"))


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Of each command of a page that measures: the module after ``benchmarks``, or nothing, and the words after it."""
    blocks = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.partition("#")[0] for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for command in [*lines, *inline]:
        if found := re.search(r"python -m benchmarks(?:\.(\w+))?((?: .*)?)$", " ".join(command.split())):
            yield found[1] or "", found[2].split()


def cannot_run(module: str, words: list[str]) -> list[str]:
    """Names that are none, and options that the module does not have: with several names there is ``--quick`` alone."""
    file = module or ("publishing/command" if words[:1] == ["published"] else "__main__")
    source = (FOLDER / f"{file}.py").read_text()
    names = [word for word in words if word[0] != "-"] if file == "__main__" else []
    options = [word for word in words if word[:2] == "--"]
    return [one for one in names if one not in NAMES] + [one for one in options if f'"{one}"' not in source]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(FOLDER.parent).as_posix())
def test_what_a_page_says_to_run_is_what_can_be_run(page: Path) -> None:
    assert [(*one, wrong) for one in commands(page.read_text()) if (wrong := cannot_run(*one))] == []


@pytest.mark.parametrize("rows", ROWS, ids=lambda rows: rows.stem)
def test_what_made_published_rows_can_be_run(rows: Path) -> None:
    made_by = re.match("# made by: (.*)\n", rows.read_text())
    assert made_by
    each = [one for command in made_by[1].split(";") for one in commands(f"`{command}`")]
    assert [(*one, wrong) for one in each if (wrong := cannot_run(*one))] == []


def test_a_command_that_cannot_be_run_is_found() -> None:
    block = "```sh\npython -m benchmarks no # x\n```\n"
    text = f"`python -m\nbenchmarks hybrid --choose`, `python -m benchmarks.hybrid --choose`\n\n{block}"
    found = list(commands(text))
    assert found == [("", ["no"]), ("", ["hybrid", "--choose"]), ("hybrid", ["--choose"])]
    assert [cannot_run(*one) for one in found] == [["no"], ["--choose"], []]


CALLGRIND = """# callgrind format
version: 1
creator: callgrind-3.19.0
cmd:  ./main
positions: line
events: Ir
summary: 1902

ob=(5) /opt/nodectl/cluster_agent/_native.abi3.so
fl=(149) lib.c
fn=(562) engine
3 111
cfn=(564) twice
calls=30 -1
* 210
* 177
cob=(3) /usr/lib/x86_64-linux-gnu/libc.so.6
cfi=(151) ./string/../sysdeps/x86_64/multiarch/memset-vec-unaligned-erms.S
cfn=(574) __memset_avx2_unaligned_erms
calls=3 167
* 33
cob=(1) /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2
cfi=(131) ./elf/../sysdeps/x86_64/dl-trampoline.h
cfn=(466) _dl_runtime_resolve_xsave
calls=1 +73
* 694
* 7
* 27

fn=(564)
2 210

ob=(3)
fl=(144) ./csu/../sysdeps/nptl/libc_start_call_main.h
fn=(546) (below main)
cob=(6) /opt/nodectl/main
cfi=(148) main.c
cfn=(554) main
calls=1 2
58 1902

fl=(151)
fn=(574)
167 6
+5 3

ob=(6)
fl=(148)
fn=(554)
2 12
cob=(5)
cfi=(149)
cfn=(562)
calls=3 +1
* 1259
* 7
* 19

ob=(5)
fn=(562)
-1 5
"""
"""Recorded by valgrind 3.19 of a program with an engine of two functions that calls memset, with fewer functions of the
C library and of the loader; the last section, of the object again, is written by hand."""


def test_only_what_the_engine_executes_itself_is_counted_in_a_file_of_callgrind() -> None:
    """Its functions have 322 and 210 instructions by callgrind_annotate; here 5 more. Calls cost in their callees."""
    assert executed(CALLGRIND) == 322 + 210 + 5
    assert executed(CALLGRIND.replace("_native.abi3.so", "other.so")) == 0


def test_gpu_shares_count_where_something_can_be_saved_and_every_slowdown_counts() -> None:
    def row(oracle: float, saving: float, slowdown: float) -> gpu_savings.Row:
        return gpu_savings.Row(
            "v100", "v100:RNN", 1, 0.2, "uniform", None, 300.0,
            oracle_saving=oracle, two_clocks_saving=2 * oracle, saving=saving, slowdown=slowdown,
        )  # fmt: skip

    found = gpu_savings.figures([row(0.2, 0.1, 0.03), row(0.1, 0.09, 0.02), row(0.04, 0.0, 0.04), row(0.2, 0.14, 0.0)])
    assert (found["runs"], found["worth"], found["within_3.5_percent"], found["worst_slowdown"]) == (4, 3, 0.75, 0.04)
    assert (found["median_share"], found["worst_share"]) == pytest.approx((0.7, 0.5))
    assert found["two_clocks_worst_share"] == 0.0


def test_no_gpu_workload_judges_that_defaults_were_chosen_on() -> None:
    chosen, judged = ({pair for pairs in gpu_savings.groups(of).values() for pair in pairs} for of in (True, False))
    assert chosen & judged == set(gpu_savings.NAMED)  # with other seeds
    assert gpu_savings.CHOOSING_SEED not in gpu_savings.SEEDS
    assert len({name for machine, name in chosen | judged if name.startswith("v100:")}) == 22


def test_cpu_savings_have_intervals_over_workloads_and_shares_count_where_something_can_be_saved() -> None:
    def row(workload: str, node: int, oracle: float, saving: float, slowdown: float) -> cpu_savings.Row:
        return cpu_savings.Row(
            "rome", workload, node, 0.2, "bdpo-cpu-bounded", None, True, oracle, 0.03, oracle, 0.03, saving, slowdown
        )

    found = cpu_savings.figures(
        [
            row("a", 1, 0.10, 0.08, 0.030), row("a", 2, 0.10, 0.09, 0.040),
            row("b", 1, 0.01, 0.00, 0.010), row("b", 2, 0.01, 0.01, 0.012),
        ]
    )  # fmt: skip
    assert (found.runs, found.worth, found.kept) == (4, 2, 0.75)
    assert found.saving.value == pytest.approx(0.045)
    assert found.saving.half == pytest.approx(12.706 * 0.04, rel=1e-3), "two workloads, 0.085 and 0.005, not two nodes"
    assert found.median_share is not None and found.median_share.value == pytest.approx(0.85)
    assert math.isnan(found.median_share.low), "one workload says nothing of others"
    assert found.worst_share == pytest.approx(0.8)
    assert (found.worst_slowdown, found.elsewhere_slowdown, found.elsewhere_saving) == (0.040, 0.012, 0.0)
    one = cpu_savings.figures([row("a", 1, 0.10, 0.08, 0.03)])
    assert math.isnan(one.saving.half) and "±" not in cpu_savings.text("one node", one)


def test_no_sequence_judges_that_parameters_were_chosen_on() -> None:
    judged = {name for line in cpu_savings.LINES for _, name in cpu_savings.cases(line, chosen=False, quick=False)}
    assert not judged & set(cpu_savings.CHOSEN_ON) and judged >= set(cpu_savings.JUDGED_MIXED)


@pytest.mark.skipif(not gpu_stage_clocks.SWEEP.exists(), reason="../shared/data has no sweep of an SXM4 here")
def test_volts_of_an_sxm4_predict_its_passes_and_make_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever reading of its scale, better than the volts of a PCIe card do as it is."""
    monkeypatch.setattr(gpu_stage_clocks, "OUT", tmp_path)
    for reading in gpu_stage_clocks.readings():
        card = gpu_stage_clocks.fitted(reading)
        row = gpu_stage_clocks.judged(reading, "own", card, gpu_stage_clocks.curves_of("forward", reading))
        assert abs(row.worst) < 0.07 and 0.65 < row.volts < 0.85
        gpu = load_machine(gpu_stage_clocks.with_volts(reading.name, card)).gpu
        assert gpu is not None and gpu.power.volts[-1] == pytest.approx((1410, 1.05))
