"""Machine and workload files: what is shipped loads, what is wrong is said in one line."""

import re
from pathlib import Path

import pytest

from twin.errors import TwinError
from twin.machine import MACHINES, load_machine, machine_names
from twin.physics import families
from twin.physics.model import Twin
from twin.programs.workload import load_workload, workload_names

SHIPPED = [name for name in workload_names() if ":" not in name]


@pytest.mark.parametrize("bias", [7.0, 0.91, -0.1, float("nan")])
def test_a_bias_that_leaves_no_truth_in_the_counters_is_refused(bias: float) -> None:
    with pytest.raises(TwinError, match=r"^bias .*a share from 0 to 0\.9$"):
        load_workload("hpl", load_machine("curie"), bias=bias)


def test_the_shipped_machines_are_those_of_the_manual() -> None:
    named = {"client", "controlpulp", "curie", "genoa-h100", "rome", "skylake-6146", "spr-h100", "v100", "xh2415"}
    assert set(machine_names()) >= named


@pytest.mark.parametrize("name", machine_names())
def test_every_machine_runs_every_workload_it_can(name: str) -> None:
    machine = load_machine(name)
    assert machine.name == name
    for workload in (*SHIPPED, "mixed-cpu:1", "mixed-gpu:1", "v100:3MM"):
        try:
            fitted = load_workload(
                workload,
                machine,
                duration_s=1.0,
                data=None if workload == "taurus" else families.DATA / "v100-sample.csv",
            )
        except TwinError as error:
            no_gpu = "needs a GPU" in str(error) and not machine.gpus
            assert no_gpu or ("needs [memory.bandwidth]" in str(error) and not machine.memory.bandwidth)
            continue
        assert fitted.seconds == pytest.approx(1.0)
        twin = Twin(machine, fitted)
        twin.advance(0.1)
        assert twin.report().work_done > 0


@pytest.mark.parametrize("name", machine_names())
def test_every_number_of_a_machine_has_its_source_on_its_line_or_at_its_table(name: str) -> None:
    """By the rule of docs/twin.md; a table in brackets passes its source on to those of the same name after it."""
    table, sourced = "", {"": True}
    bare = []
    for number, line in enumerate((MACHINES / f"{name}.toml").read_text().splitlines(), start=1):
        code, _, comment = line.partition("#")
        if header := re.match(r"\[+([\w.]+)", code):
            table = header[1]
            sourced[table] = bool(comment.strip()) or (code.startswith("[[") and sourced.get(table, False))
        elif re.search(r"[=,{] *-?\d", code) and not comment.strip() and not sourced[table]:
            bare.append(f"{number}: {line}")
    assert bare == []


def test_genoa_has_384_logical_cpus_in_kernel_order() -> None:
    machine = load_machine("genoa-h100")
    assert (machine.cpus, machine.cores, machine.gpus) == (384, 192, 8)
    assert machine.core_of[:2] == (0, 1)
    assert machine.core_of[192] == 0
    assert machine.package_of[95:97] == (0, 1)
    assert machine.domains[0].cpus == (0, 192)


def test_zones_come_in_kernel_order() -> None:
    labels = {name: [zone.label for zone in load_machine(name).zones] for name in ("curie", "client", "xh2415")}
    assert labels["curie"][:4] == ["package-0", "package-0/core", "package-0/dram", "package-1"]
    assert labels["client"] == ["package-0", "package-0/core", "package-0/uncore", "psys", "package-0/mmio"]
    assert not any(zone.writable for zone in load_machine("xh2415").zones)
    mmio = load_machine("client").zones[-1]
    assert (mmio.control_type, mmio.path, mmio.mmio) == ("intel-rapl-mmio", "intel-rapl-mmio:0", True)


def test_instruments_exist_as_on_the_real_machines() -> None:
    assert "stalls" in load_machine("curie").events
    assert "stalls" not in load_machine("xh2415").events
    assert load_machine("xh2415").reference_source == "msr"
    assert load_machine("genoa-h100").reference_source == "cpu"
    assert len(load_machine("curie").domains) == 2
    assert len(load_machine("skylake-6146").domains) == 24
    assert len(load_machine("controlpulp").domains) == 4


def test_faults_in_a_machine_file_are_kept_as_they_stand(tmp_path: Path) -> None:
    path = _edited(tmp_path, "[[sensor]]", '[[fault]]\nkind = "stuck"\ntarget = "gpu:0:power"\nat_s = 2\n[[sensor]]')
    assert load_machine(path).faults == ({"kind": "stuck", "target": "gpu:0:power", "at_s": 2},)


def _edited(tmp_path: Path, old: str, new: str) -> str:
    text = (MACHINES / "curie.toml").read_text()
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1))
    return str(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tsc_khz = ", "tsc_hz = ", 'unknown key "tsc_hz" (nearest: tsc_khz)'),
        ("tsc_khz = 2700000", "", 'key "tsc_khz" is missing (cpu)'),
        ("latency_us = 10 ", 'latency_us = "x" ', 'key "frequency.latency_us": expected a whole number, got text'),
        ('"llc-misses"]', '"llc-mises"]', 'unknown event "llc-mises" (nearest: llc-misses)'),
        ('governor = "ondemand"', 'governor = "ondemnd"', "(nearest: ondemand)"),
        ('domain = "socket"', 'domain = "socket"\npolicy = "core"', 'key "frequency.policy"'),
        ("latency_us = 10 ", "preference_khz = [[192, 1], [128, 2]]\nlatency_us = 10 ", "ascend within 0 to 255"),
        ("latency_us = 10 ", "preference_khz = [[256, 1]]\nlatency_us = 10 ", "ascend within 0 to 255"),
        ("sockets = 2", "sockets = ", "Invalid value (at line"),
        ("[[zone]]", "[[zne]]", 'unknown key "zne" (nearest: zone)'),
        ("min_khz = 1200000", "min_khz = 9200000", "frequency.min_khz: 9200000 is above max_khz, 2700000"),
        ("[1200, 0.7648]", "[1200, -0.7]", "expected a number above 0"),
        ("range_uj = 65532610987", "range_uj = 0", 'key "zone.range_uj": expected a whole number of at least 1'),
        ("rest_w = ", "rest_w = nan # ", 'key "power.rest_w": is not a finite number'),
        ("limit_w = 130.0", "limit_w = inf", 'key "zone.constraints.limit_w": is not a finite number'),
        ("limit_w = 130.0", "limit = 130.0", 'unknown key "limit" (nearest: limit_w)'),
    ],
)
def test_a_wrong_machine_file_is_explained_in_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(TwinError) as raised:
        load_machine(_edited(tmp_path, old, new))
    message = str(raised.value)
    assert said in message
    assert message.startswith(str(tmp_path / "mine.toml"))
    assert "\n" not in message


def test_the_line_of_a_wrong_key_is_named(tmp_path: Path) -> None:
    path = _edited(tmp_path, "tsc_khz = ", "tsc_hz = ")
    line = next(n for n, text in enumerate(Path(path).read_text().splitlines(), 1) if text.startswith("tsc_hz"))
    with pytest.raises(TwinError, match=rf"mine\.toml:{line}: "):
        load_machine(path)


def test_the_line_of_a_key_that_does_not_go_with_another_is_named(tmp_path: Path) -> None:
    path = _edited(tmp_path, "min_khz = 1200000", "min_khz = 9200000")
    line = next(n for n, text in enumerate(Path(path).read_text().splitlines(), 1) if "9200000" in text)
    with pytest.raises(TwinError, match=rf"mine\.toml:{line}: frequency\.min_khz: "):
        load_machine(path)


def test_a_fault_in_a_machine_file_may_last_for_ever(tmp_path: Path) -> None:
    fault = '[[fault]]\nkind = "stuck"\ntarget = "gpu:0:power"\nat_s = 2\nfor_s = inf\n[[sensor]]'
    assert load_machine(_edited(tmp_path, "[[sensor]]", fault)).faults[0]["for_s"] == float("inf")


def test_a_phase_of_a_trace_may_be_called_anything(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("unit,phase,seconds\ncpu,-1,1.0\ncpu,inf,1.0\n")
    workload = load_workload(f"trace:{path}", load_machine("curie"))
    assert [phase.name for phase in workload.truth.groups[0].phases] == ["-1", "inf"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("eazywave", "(nearest: easywave)"),
        ("v100:ResNet50", 'unknown workload "v100:ResNet50" (nearest: ResN50)'),
        ("mixed-cpu:x", "is a seed, a whole number"),
        ("trace:/nowhere.csv", "/nowhere.csv: No such file"),
    ],
)
def test_a_wrong_workload_is_explained(name: str, said: str) -> None:
    with pytest.raises(TwinError) as raised:
        load_workload(name, load_machine("v100"))
    assert said in str(raised.value)


def test_a_wrong_machine_name_names_the_nearest() -> None:
    with pytest.raises(TwinError, match=r'unknown machine "curry" \(nearest: curie\)'):
        load_machine("curry")


def test_a_workload_that_asks_for_all_bandwidth_is_refused_where_nothing_bounds_it() -> None:
    message = r'workload "triad" needs \[memory.bandwidth\]; machine "curie" has none'
    with pytest.raises(TwinError, match=message):
        load_workload("triad", load_machine("curie"))


def test_a_gpu_workload_needs_a_gpu() -> None:
    with pytest.raises(TwinError, match='workload "easywave" needs a GPU; machine "curie" has none'):
        load_workload("easywave", load_machine("curie"))


def test_a_workload_belongs_to_its_machine() -> None:
    workload = load_workload("hpl", load_machine("curie"))
    with pytest.raises(TwinError, match='was fitted to "curie", not "client"'):
        Twin(load_machine("client"), workload)


def test_a_phase_trace_runs_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "unit,phase,seconds,beta,knee_mhz,activity,iterations\n"
        "cpu,assemble,2.0,0.9,,1.0,10\ncpu,solve,3.0,0.2,,,\ncpu,assemble,1.0,0.9,,1.0,5\ngpu,kernel,4.0,,900,0.8,40\n"
    )
    machine = load_machine("v100")
    workload = load_workload(f"trace:{path}", machine)
    cpu, gpu = workload.truth.groups
    assert [phase.name for phase in cpu.phases] == ["assemble", "solve"]
    assert cpu.program == ((0, 2.0), (1, 3.0), (0, 1.0))
    assert gpu.phases[0].knee_mhz == 900
    twin = Twin(machine, workload)
    for domain in range(len(machine.domains)):
        twin.set_domain(domain, governor="performance")
    twin.advance(10.0)
    assert twin.report().time_s == pytest.approx(6.0, rel=0.01)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("unit,phase,seconds,bet\ncpu,a,1.0,0.5\n", ':2: unknown column "bet" (nearest: beta)'),
        ("unit,phase,seconds\ncpu,a,soon\n", ":2: "),
        ("unit,phase,seconds\ntpu,a,1.0\n", ':2: unit: "tpu" is neither cpu nor gpu'),
        ("unit,phase,seconds\ncpu,a,1.0,7\n", ": line 2: it has 4 fields, and the first line names 3 columns"),
        ("unit,phase,seconds,beta\ncpu,a,1.0,nan\n", ":2: beta: nan is negative or not a number"),
        ("unit,phase,seconds,beta\ncpu,a,1.0,1.5\n", ":2: beta: expected a number of at most 1"),
        ("unit,phase,seconds\ncpu,a,0\n", ":2: a phase lasts longer than 0 s"),
        ("unit,phase,seconds\n", ": has no phases"),
    ],
)
def test_a_wrong_trace_is_explained(tmp_path: Path, row: str, said: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(row)
    with pytest.raises(TwinError) as raised:
        load_workload(f"trace:{path}", load_machine("v100"))
    assert f"{path}{said}" in str(raised.value)


def test_files_that_are_no_text_are_named(tmp_path: Path) -> None:
    for name, prefix in (("trace.csv", "trace:"), ("load.toml", "")):
        path = tmp_path / name
        path.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(TwinError, match=f"{name}: it begins as UTF-16 and does not go on so"):
            load_workload(f"{prefix}{path}", load_machine("v100"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sockets = 99999", "more than 4096 logical CPUs"),
        ("cores_per_socket = 0", "cpu.cores_per_socket: 0 is below 1"),
    ],
)
def test_a_machine_of_no_cpus_or_of_too_many_is_refused(tmp_path: Path, line: str, said: str) -> None:
    key = line.split()[0]
    shipped = Path(load_machine("curie").path).read_text()
    path = tmp_path / "node.toml"
    path.write_text(re.sub(rf"(?m)^{key} .*$", line, shipped))
    with pytest.raises(TwinError, match=said):
        load_machine(str(path))


def test_seeded_mixes_differ_in_length_and_boundness() -> None:
    machine = load_machine("skylake-6146")
    phases = load_workload("mixed-cpu:12", machine).truth.groups[0].phases
    betas = [phase.beta for phase in phases]
    assert max(betas) - min(betas) > 0.2
    assert load_workload("mixed-cpu:12", machine).truth.groups[0].program[0][1] >= 2.0
    assert betas != [phase.beta for phase in load_workload("mixed-cpu:13", machine).truth.groups[0].phases]
