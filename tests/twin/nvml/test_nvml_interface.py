"""The library's outside: names, layouts, refusals, build."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_S
from twin.nvml import build

pynvml: Any = pytest.importorskip("pynvml", reason="nvidia-ml-py is missing: install it")

STRUCTURES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "nvmlPciInfo_t": (pynvml.nvmlPciInfo_t, ("busId", "pciDeviceId")),
    "nvmlPciInfo_v2_t": (pynvml.nvmlPciInfo_v2_t, ("pciSubSystemId",)),
    "nvmlPciInfoExt_v1_t": (pynvml.nvmlPciInfoExt_v1_t, ("busId", "subClass")),
    "nvmlMemory_t": (pynvml.c_nvmlMemory_t, ("used", "free")),
    "nvmlMemory_v2_t": (pynvml.c_nvmlMemory_v2_t, ("reserved", "used")),
    "nvmlBAR1Memory_t": (pynvml.c_nvmlBAR1Memory_t, ("bar1Used",)),
    "nvmlUtilization_t": (pynvml.c_nvmlUtilization_t, ("memory",)),
    "nvmlTemperature_v1_t": (pynvml.c_nvmlTemperature_v1_t, ("temperature",)),
    "nvmlPowerValue_v2_t": (pynvml.c_nvmlPowerValue_v2_t, ("powerValueMw",)),
    "nvmlEccErrorCounts_t": (pynvml.c_nvmlEccErrorCounts_t, ("registerFile",)),
    "nvmlValue_t": (pynvml.c_nvmlValue_t, ("usVal",)),
    "nvmlSample_t": (pynvml.c_nvmlSample_t, ("sampleValue",)),
    "nvmlViolationTime_t": (pynvml.c_nvmlViolationTime_t, ("violationTime",)),
    "nvmlFieldValue_t": (pynvml.c_nvmlFieldValue_t, ("timestamp", "value")),
    "nvmlProcessInfo_t": (pynvml.c_nvmlProcessInfo_t, ("usedGpuMemory", "computeInstanceId")),
    "nvmlProcessDetail_v1_t": (pynvml.c_nvmlProcessDetail_v1_t, ("usedGpuCcProtectedMemory",)),
    "nvmlProcessUtilizationSample_t": (pynvml.c_nvmlProcessUtilizationSample_t, ("timeStamp", "decUtil")),
    "nvmlProcessDetailList_v1_t": (pynvml.c_nvmlProcessDetailList_v1_t, ("procArray",)),
    "nvmlGpuInstancePlacement_t": (pynvml.c_nvmlGpuInstancePlacement_t, ("size",)),
    "nvmlGpuInstanceProfileInfo_t": (pynvml.c_nvmlGpuInstanceProfileInfo_t, ("ofaCount", "memorySizeMB")),
    "nvmlGpuInstanceProfileInfo_v2_t": (pynvml.c_nvmlGpuInstanceProfileInfo_v2_t, ("memorySizeMB", "name")),
    "nvmlGpuInstanceInfo_t": (pynvml.c_nvmlGpuInstanceInfo_t, ("profileId", "placement")),
    "nvmlComputeInstanceProfileInfo_t": (pynvml.c_nvmlComputeInstanceProfileInfo_t, ("sharedOfaCount",)),
    "nvmlComputeInstanceProfileInfo_v2_t": (pynvml.c_nvmlComputeInstanceProfileInfo_v2_t, ("name",)),
    "nvmlComputeInstanceInfo_t": (pynvml.c_nvmlComputeInstanceInfo_t, ("gpuInstance", "placement")),
    "nvmlDeviceAttributes_t": (pynvml.c_nvmlDeviceAttributes, ("memorySizeMB",)),
    "nvmlGpmSupport_t": (pynvml.c_nvmlGpmSupport_t, ("isSupportedDevice",)),
    "nvmlGpmMetricInfo_t": (pynvml.c_metricInfo_t, ("unit",)),
    "nvmlGpmMetric_t": (pynvml.c_nvmlGpmMetric_t, ("value", "metricInfo")),
}


def exported(library_file: Path) -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(library_file)], capture_output=True, text=True, check=True
    )
    return {line.split()[-1] for line in listing.stdout.splitlines()}


def stub_names(library_file: Path) -> list[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(library_file)], capture_output=True, text=True, check=True
    )
    return [line.split()[-1] for line in listing.stdout.splitlines() if line.split()[-2] == "W"]


def asked_by_pynvml() -> set[str]:
    return set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', Path(pynvml.__file__).read_text()))


def test_every_structure_has_the_layout_of_nvidia_ml_py(tmp_path: Path) -> None:
    lines = ["#include <stdio.h>", '#include "nvml_api.h"', "int main(void) {"]
    expected = []
    for name, (python_type, fields) in STRUCTURES.items():
        lines.append(f'    printf("%zu\\n", sizeof({name}));')
        expected.append(ctypes.sizeof(python_type))
        for field in fields:
            lines.append(f'    printf("%zu\\n", offsetof({name}, {field}));')
            expected.append(getattr(python_type, field).offset)
    lines.append('    printf("%zu\\n", offsetof(nvmlGpmMetricsGet_t, metrics));')
    expected.append(pynvml.c_nvmlGpmMetricsGet_t.metrics.offset)
    source = tmp_path / "sizes.c"
    source.write_text("\n".join([*lines, "}"]))
    folder = Path(build.__file__).parent
    subprocess.run(["cc", "-std=c11", f"-I{folder}", str(source), "-o", str(tmp_path / "sizes")], check=True)
    printed = subprocess.run([str(tmp_path / "sizes")], capture_output=True, text=True, check=True).stdout
    assert [int(line) for line in printed.split()] == expected


def test_the_soname_is_the_drivers_so_a_preloaded_copy_answers_for_it(library: ctypes.CDLL) -> None:
    by_soname = ctypes.CDLL("libnvidia-ml.so.1")
    address = [ctypes.cast(copy.nvmlInit_v2, ctypes.c_void_p).value for copy in (library, by_soname)]
    assert address[0] == address[1]


def test_every_function_that_nvidia_ml_py_knows_is_exported(library_file: Path) -> None:
    assert asked_by_pynvml() <= exported(library_file)


def test_nothing_but_nvml_and_the_twins_own_two_calls_is_exported(library_file: Path) -> None:
    strangers = {name for name in exported(library_file) if not name.startswith("nvml")}
    assert strangers == {"twin_nvml_attach", "twin_nvml_set_delay"}


def test_there_is_no_getter_for_locked_clocks(library_file: Path) -> None:
    assert not [name for name in exported(library_file) if "LockedClocks" in name and "Get" in name]


def test_every_stub_answers_not_supported(library: ctypes.CDLL, library_file: Path, nvml: Any) -> None:
    stubs = stub_names(library_file)
    assert len(stubs) > 200
    answers = {name: library[name](None, None, None, None) for name in stubs}
    assert {name for name, answer in answers.items() if answer != nvml.NVML_ERROR_NOT_SUPPORTED} == set()


NONSENSE = """
import ctypes, runpy, sys

conftest = runpy.run_path(sys.argv[1])
library = ctypes.CDLL(sys.argv[2])
gpus = conftest["fill_gpus"]()
library.twin_nvml_attach(ctypes.c_void_p(int(conftest["FFI"].cast("uintptr_t", gpus))))
library.nvmlInit_v2()
good = ctypes.c_void_p()
library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(good))
strays = [ctypes.c_void_p(stray) for stray in (None, 1, good.value + 3, good.value - 1, 2**64 - 8)]
for name in sys.argv[3:]:
    call = library[name]
    takes_handle = name.startswith(("nvmlDevice", "nvmlGpmSample", "nvmlGpmQuery")) and "HandleBy" not in name
    if takes_handle and name not in ("nvmlDeviceGetCount", "nvmlDeviceGetCount_v2", "nvmlGpmSampleAlloc"):
        call(good, None, None, None, None, None)
        answers = {call(stray, None, None, None, None, None) for stray in strays}
    else:
        answers = {call(None, None, None, None, None, None)}
    print(name, *answers)
"""


def test_null_pointers_and_stray_handles_are_refused_by_every_function(library_file: Path) -> None:
    """In a process of its own, where a crash would show as its exit status."""
    names = sorted(
        exported(library_file) - {"nvmlErrorString", "nvmlShutdown", "twin_nvml_attach", "twin_nvml_set_delay"}
    )
    conftest = Path(__file__).parent / "conftest.py"
    result = subprocess.run(
        [sys.executable, "-c", NONSENSE, str(conftest), str(library_file), *names],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    answers = {line.split()[0]: set(map(int, line.split()[1:])) for line in result.stdout.splitlines()}
    refusals = {pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED}
    accepted = {name for name, got in answers.items() if not got <= refusals}
    assert accepted == {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags"}


UNINITIALIZED = """
import ctypes, sys

library = ctypes.CDLL(sys.argv[1])
print(*{library[name](None, None, None, None, None, None) for name in sys.argv[2:]})
"""


def test_before_init_every_function_says_uninitialized(library_file: Path) -> None:
    names = exported(library_file) - {"twin_nvml_attach", "twin_nvml_set_delay"}
    names -= {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlErrorString", "nvmlGpmSampleFree"}
    result = subprocess.run(
        [sys.executable, "-c", UNINITIALIZED, str(library_file), *sorted(names)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == [str(pynvml.NVML_ERROR_UNINITIALIZED)]


def test_error_texts_are_nvmls_own(nvml: Any) -> None:
    assert nvml.nvmlErrorString(nvml.NVML_ERROR_GPU_IS_LOST) == "GPU is lost"
    assert nvml.nvmlErrorString(12345) == "Unknown Error"
    codes = [
        getattr(nvml, name) for name in dir(nvml) if name.startswith("NVML_ERROR_") and name != "NVML_ERROR_UNKNOWN"
    ]
    texts = [nvml.nvmlErrorString(code) for code in codes]
    assert len(set(texts)) == len(texts) and "Unknown Error" not in texts


def test_the_committed_list_alone_makes_the_library_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with_package = build.function_names()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert set(build.function_names()) >= asked_by_pynvml() & set(with_package)


def test_a_missing_compiler_is_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(build.NvmlBuildError, match=r"no C compiler 'no-such-cc' .*install gcc"):
        build.build(tmp_path, cc="no-such-cc")
    assert list(tmp_path.iterdir()) == []


def test_a_library_never_built_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "_HERE", tmp_path)
    with pytest.raises(build.NvmlBuildError, match=r"python -m twin\.nvml\.build"):
        build.library_path()


def test_the_build_writes_nothing_but_the_library(tmp_path: Path) -> None:
    assert build.build(tmp_path / "out") == tmp_path / "out" / "libnvidia-ml.so.1"
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["libnvidia-ml.so.1"]
