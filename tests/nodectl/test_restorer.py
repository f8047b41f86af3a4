"""The restorer in C: the rule of ``nodectl.write.restore``, without Python, under the sanitizers."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import threading
import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodectl.build_restorer import build
from nodectl.knobs import open_knob
from nodectl.knobs.recipe import NvmlRecipe, Recipe
from nodectl.write.lock import NodeLock
from nodectl.write.restore import recipe_of, restore_saved
from nodectl.write.saves import Save, read_save
from pmu.ports import Ports
from tests.nodectl.file_tree import CPUFREQ, MAX_KHZ, file_node, limit_path
from tests.waiting import LONG_S, PATIENCE_S, processor_time

BOOT = "boot-1"
CASES = [
    (kind, case)
    for kind in tomllib.loads((Path(__file__).parent / "restore_cases.toml").read_text()).values()
    for case in kind["cases"]
]
SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler is missing: install gcc")


def sanitized(folder: Path) -> Path:
    """The program with the sanitizers; skips where these are missing, and nowhere else."""
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    probe = ["cc", *SANITIZERS, "-o", folder / "empty", folder / "empty.c"]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("the sanitizers' libraries are missing: install libgcc-12-dev")
    return build(folder / "nodectl-restorer", *SANITIZERS)


@pytest.fixture(scope="module")
def restorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, under AddressSanitizer and UndefinedBehaviorSanitizer."""
    return sanitized(tmp_path_factory.mktemp("restorer"))


def run(restorer: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([restorer, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
    return done


def restore(restorer: Path, node: Ports, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    where = ("--root", node.files.root, "--save", path, "--boot", BOOT, "--lock", path.parent / "lock")
    return run(restorer, "restore", *where, *options)


def rows(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """Knob, status and detail of each."""
    return [line.split("  ", 2) for line in done.stdout.splitlines() if "  " in line]


def node_of(folder: Path) -> Ports:
    """A node with one knob of each kind that is a file."""
    node = file_node(folder, policies=2)
    base = f"{CPUFREQ}/policy0"
    node.files.put(
        f"{base}/energy_performance_available_preferences",
        "default performance balance_performance balance_power power",
    )
    node.files.put(f"{base}/energy_performance_preference", "performance")
    uncore = "/sys/devices/system/cpu/intel_uncore_frequency/package_00_die_00"
    for name, khz in (("max_freq_khz", 2_400_000), ("min_freq_khz", 800_000)):
        node.files.put(f"{uncore}/{name}", khz)
    node.files.put("/sys/class/thermal/cooling_device0/type", "Processor")
    node.files.put("/sys/class/thermal/cooling_device0/cur_state", "0")
    return node


def lay(node: Ports, kind: dict[str, Any], case: dict[str, Any]) -> None:
    if "bios_limit" in case:
        node.files.put(f"{CPUFREQ}/policy0/bios_limit", case["bios_limit"])
    node.files.put("/sys/class/thermal/cooling_device0/cur_state", case.get("cooling", "0"))
    if case["present"]:
        node.files.put(kind["file"], case["present"])
    else:
        os.unlink(node.files.root / kind["file"][1:])


def saved(node: Ports, path: Path, kind: dict[str, Any], case: dict[str, Any]) -> None:
    recipe = recipe_of(kind["name"], lambda name: open_knob(node, name))
    save = Save(str(path), BOOT, lambda _: recipe)
    save.capture({kind["name"]: case["captured"]})
    for value in case["ours"]:
        save.wrote({kind["name"]: value})
    if "limit" in case:
        save.limit_restores({kind["name"]: case["limit"]})
    save.close()


def text_of(node: Ports, kind: dict[str, Any]) -> str:
    file = node.files.root / kind["file"][1:]
    return file.read_text().strip() if file.exists() else ""


@pytest.mark.parametrize(("kind", "case"), CASES, ids=lambda it: it.get("what", it.get("name", "")))
def test_python_and_c_do_the_same_with_a_knob_and_say_the_same(
    restorer: Path, tmp_path: Path, kind: dict[str, Any], case: dict[str, Any]
) -> None:
    said: list[tuple[str, str]] = []
    for who in ("python", "c"):
        node, path = node_of(tmp_path / who / "node"), tmp_path / who / "captured.jsonl"
        saved(node, path, kind, case)
        lay(node, kind, case)
        leaves = case.get("leaves", False)
        for dry_run in (True, False):
            if who == "python":
                done = restore_saved(str(path), BOOT, lambda name, on=node: open_knob(on, name), dry_run, leaves)
                status, outcome = 0 if done.is_complete else 1, done.outcomes[0]
                said.append((outcome.status, outcome.detail))
            else:
                options = (["--dry-run"] if dry_run else []) + (["--leave-cluster"] if leaves else [])
                ran = restore(restorer, node, path, *options)
                ((name, *words),) = rows(ran)
                assert name == kind["name"] and ran.stderr == ""
                status = ran.returncode
                assert words[0].startswith("would be ") == dry_run
                said.append((words[0].removeprefix("would be "), words[1]))
            assert said[-1][0] == case["status"] and status == (1 if case["status"] == "vanished" else 0)
            if dry_run:
                assert text_of(node, kind) == case["present"]
        assert text_of(node, kind) == case["after"]
        is_kept = case["status"] in ("held", "vanished")
        assert path.exists() == is_kept
        if is_kept:
            state = read_save(str(path))
            assert state.lost == "" and state.knobs[kind["name"]].value == case["captured"]
    assert said[:2] == said[2:]


def at_random(node: Ports, path: Path, chance: random.Random, policies: int) -> list[str]:
    """Clocks and package limits at values near each other, so that all that the rule tells apart comes up."""
    clocks = [f"cpu/policy{policy}/max_khz" for policy in range(policies)]
    names = [
        *clocks,
        *(f"rapl/package-{package}/{term}_uw" for package in range(4) for term in ("long_term", "short_term")),
    ]
    chance.shuffle(names)
    values = [str(chance.choice((900_000, 1_000_000, 1_100_000, 1_225_000))) for _ in names]
    save = Save(str(path), BOOT, lambda name: recipe_of(name, lambda one: open_knob(node, one)))
    save.capture(dict(zip(names, values, strict=True)))
    for _ in range(3):
        some = chance.sample(names, len(names) // 2)
        save.wrote({name: chance.choice((900_000, 1_000_000, 1_100_000, 1_225_001)) for name in some})
    save.limit_restores({name: chance.choice((950_000, 1_000_000)) for name in chance.sample(names, len(names) // 4)})
    save.close()
    for name in names:
        present = chance.choice((900_000, 950_000, 1_000_000, 1_100_000, 1_225_000, 1_350_000, "off"))
        node.files.put(open_knob(node, name).path, present)  # type: ignore[attr-defined]
    return names


@pytest.mark.parametrize("seed", range(8))
def test_python_and_c_agree_on_knobs_at_random(restorer: Path, tmp_path: Path, seed: int) -> None:
    rows_of: dict[str, list[list[str]]] = {}
    trees: dict[str, list[str]] = {}
    for who in ("python", "c"):
        node, path = file_node(tmp_path / who / "node", policies=60, packages=4), tmp_path / who / "captured.jsonl"
        names = at_random(node, path, random.Random(seed), 60)
        if who == "python":
            done = restore_saved(str(path), BOOT, lambda name, on=node: open_knob(on, name))
            rows_of[who] = [[one.knob, one.status, one.detail] for one in done.outcomes]
        else:
            rows_of[who] = rows(restore(restorer, node, path))
        trees[who] = [node.files.read(open_knob(node, name).path).strip() for name in names]  # type: ignore[attr-defined]
    assert len({status for _, status, _ in rows_of["python"]}) == 3, "restored, left and at its limit"
    assert rows_of["python"] == rows_of["c"] and trees["python"] == trees["c"]
    state, other = (read_save(str(tmp_path / who / "captured.jsonl")) for who in ("python", "c"))
    assert state.knobs == other.knobs and state.restore_limits == other.restore_limits


def moved(node: Ports, path: Path, policies: int = 4) -> None:
    """A run that moved the clocks of a node and was then killed."""
    names = [f"cpu/policy{policy}/max_khz" for policy in range(policies)]
    save = Save(str(path), BOOT, lambda name: recipe_of(name, lambda one: open_knob(node, one)))
    save.capture(dict.fromkeys(names[:2], str(MAX_KHZ)))
    save.wrote(dict.fromkeys(names[:2], 1_300_000))
    save.capture(dict.fromkeys(names[2:], str(MAX_KHZ)))
    save.limit_restores({"node/cap_mw": 5, names[-1]: 1_100_000})
    save.wrote(dict.fromkeys(names, 1_200_000))
    save.close()
    for policy in range(policies):
        node.files.put(limit_path(policy), 1_200_000)


def limits(node: Ports, policies: int = 4) -> list[int]:
    return [int(node.files.read(limit_path(policy))) for policy in range(policies)]


def test_every_knob_goes_back_the_last_one_first_and_what_waits_stays_in_the_save(
    restorer: Path, tmp_path: Path
) -> None:
    node, path = file_node(tmp_path / "node"), tmp_path / "captured.jsonl"
    moved(node, path)
    os.rename(node.files.root / limit_path(1)[1:], node.files.root / "aside")
    done = restore(restorer, node, path)
    assert [(name[10], status) for name, status, _ in rows(done)] == [
        ("3", "held"), ("2", "restored"), ("1", "vanished"), ("0", "restored"),
    ]  # fmt: skip
    assert done.returncode == 1
    left = read_save(str(path))
    assert left.problems == [] and left.lost == "" and left.boot_id == BOOT
    assert list(left.knobs) == ["cpu/policy1/max_khz", "cpu/policy3/max_khz"]
    assert left.knobs["cpu/policy1/max_khz"].ours == (1_300_000, 1_200_000)
    assert left.knobs["cpu/policy3/max_khz"].restore_limit == 1_100_000 and left.restore_limits["node/cap_mw"] == 5
    os.rename(node.files.root / "aside", node.files.root / limit_path(1)[1:])
    assert restore(restorer, node, path).returncode == 0
    assert limits(node) == [MAX_KHZ, MAX_KHZ, MAX_KHZ, 1_100_000]
    result = restore_saved(str(path), BOOT, lambda name: open_knob(node, name), leaves_cluster=True)
    assert result.is_complete and limits(node)[3] == MAX_KHZ and not path.exists(), "Python reads what C has written"
    done = restore(restorer, node, path)
    assert (done.returncode, done.stdout) == (0, "nothing to restore\n")


def test_a_save_of_another_boot_is_set_aside_and_not_applied(restorer: Path, tmp_path: Path) -> None:
    node, path = file_node(tmp_path / "node"), tmp_path / "captured.jsonl"
    moved(node, path)
    done = restore(restorer, node, path, "--boot", "boot-2")
    assert done.returncode == 0 and "of another boot" in done.stdout and limits(node) == [1_200_000] * 4
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_file()) == [
        "captured.jsonl.old-1", "lock", "lock.generation",
    ]  # fmt: skip


def test_who_runs_the_node_is_named_and_left_alone(restorer: Path, tmp_path: Path) -> None:
    node, path = file_node(tmp_path / "node"), tmp_path / "captured.jsonl"
    moved(node, path)
    with NodeLock(str(tmp_path / "state"), str(tmp_path / "lock")) as lock:
        done = restore(restorer, node, path, "--lease", "0.1")
        assert done.returncode == 1 and f"pid {os.getpid()} already runs this node" in done.stderr
        assert restore(restorer, node, path, "--if-idle").returncode == 0
        assert limits(node) == [1_200_000] * 4 and lock.is_current()
    assert restore(restorer, node, path, "--if-idle").returncode == 0
    assert limits(node)[0] == MAX_KHZ and not lock.is_current()


def test_a_writer_that_is_still_putting_knobs_back_is_waited_for(restorer: Path, tmp_path: Path) -> None:
    node, path = file_node(tmp_path / "node"), tmp_path / "captured.jsonl"
    moved(node, path)
    lock = NodeLock(str(tmp_path / "state"), str(tmp_path / "lock"))
    lock.acquire()
    threading.Timer(0.5, lock.release).start()
    assert restore(restorer, node, path, "--lease", str(PATIENCE_S)).returncode == 0
    assert limits(node)[0] == MAX_KHZ


def test_what_needs_python_is_said_kept_and_passed_on(restorer: Path, tmp_path: Path) -> None:
    node, path = file_node(tmp_path / "node"), tmp_path / "captured.jsonl"
    moved(node, path, 2)
    Save(str(path), BOOT).capture({"scmi+shm:/run/x#package/cap_mw": "disabled"})
    other = tmp_path / "nodectl"
    other.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\nexit 3\n')
    other.chmod(0o755)
    done = restore(restorer, node, path, "--rest-by", str(other))
    assert done.returncode == 3 and (tmp_path / "called").read_text() == "restore\n"
    assert list(read_save(str(path)).knobs)[-1].startswith("scmi")
    (tmp_path / "called").unlink()
    restore(restorer, node, path, "--rest-by", str(other), "--dry-run", "--leave-cluster")
    assert (tmp_path / "called").read_text() == "restore --dry-run --leave-cluster\n"
    done = restore(restorer, node, path)
    assert done.returncode == 1 and "only `nodectl restore` can put it back" in done.stdout


FAKE_NVML = r"""
#include <stdio.h>
#include <stdlib.h>
static void note(const char *what, unsigned value)
{
    FILE *file = fopen(getenv("NVML_NOTES"), "a");
    fprintf(file, "%s %u\n", what, value);
    fclose(file);
}
int nvmlInit_v2(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "No permission"; }
int nvmlDeviceGetHandleByIndex_v2(unsigned gpu, void **device)
{
    *device = (void *)(size_t)(gpu + 1);
    return gpu < 2 ? 0 : 15;
}
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz) { *mhz = 900; return device && type == 1 ? 0 : 15; }
int nvmlDeviceResetGpuLockedClocks(void *device) { note("unlock", (unsigned)(size_t)device - 1); return 0; }
int nvmlDeviceSetGpuLockedClocks(void *device, unsigned least, unsigned most)
{
    note(device && least == most ? "lock" : "lock to a range", most);
    return 0;
}
int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *mw) { *mw = device ? 200000 : 0; return 0; }
int nvmlDeviceSetPowerManagementLimit(void *device, unsigned mw)
{
    note("limit", mw);
    return device == (void *)2 ? 4 : 0;
}
"""


def test_gpus_are_unlocked_and_their_limits_put_back_through_nvml(
    restorer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library with NVML's names that notes what it is called with; the emulated one: test_restorer_served.py."""
    (tmp_path / "nvml.c").write_text(FAKE_NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("NVML_NOTES", str(tmp_path / "notes"))
    recipes: dict[str, Recipe] = {
        "gpu/0/sm_clock_mhz": NvmlRecipe(0, "clock_lock"),
        "gpu/0/power_limit_mw": NvmlRecipe(0, "power_limit"),
        "gpu/1/power_limit_mw": NvmlRecipe(1, "power_limit"),
        "gpu/1/sm_clock_mhz": NvmlRecipe(1, "clock_lock"),
        "gpu/2/sm_clock_mhz": NvmlRecipe(2, "clock_lock"),
    }
    save = Save(str(tmp_path / "captured.jsonl"), BOOT, recipes.get)
    was = {name: "unlocked" if "clock" in name else "400000" for name in recipes}
    save.capture(was | {"gpu/1/sm_clock_mhz": "locked 1095"})
    save.wrote({name: 900 if "clock" in name else 200_000 for name in recipes})
    save.close()
    done = restore(restorer, file_node(tmp_path / "node"), Path(save.path))
    assert rows(done) == [
        ["gpu/2/sm_clock_mhz", "vanished", "GPU 2: cannot find: GPU is lost"],
        ["gpu/1/sm_clock_mhz", "restored", "locked 1095; where it was cannot be read (no getter)"],
        ["gpu/1/power_limit_mw", "refused", "GPU 1: cannot set its power limit: No permission; the agent needs root"],
        ["gpu/0/power_limit_mw", "no-effect", "requested 400000, still at 200000"],
        ["gpu/0/sm_clock_mhz", "restored", "unlocked; where it was cannot be read (no getter)"],
    ]
    notes = (tmp_path / "notes").read_text()
    assert (done.returncode, notes) == (1, "lock 1095\nlimit 400000\nlimit 400000\nunlock 0\n")


# --- damage


def damaged(whole: bytes) -> Iterator[bytes]:
    """Cut at each byte, one bit changed in each byte, and heavier damage at random."""
    for at in range(len(whole)):
        yield whole[:at]
    for at in range(len(whole)):
        yield whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
    chance = random.Random(14)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 20)):
            begin = chance.randrange(len(data))
            size = chance.randrange(1, 40)
            data[begin : begin + size] = chance.choice([b"", bytes(size), chance.randbytes(size), b'{"' * size])
            if not data:
                break
        yield bytes(data)


def with_checksums(damaged: bytes) -> bytes:
    """The same with right checksums, so that what is behind them is read."""
    payloads = (line[9:] for line in damaged.split(b"\n"))
    return b"\n".join(b"%08x %s" % (zlib.crc32(payload), payload) for payload in payloads) + b"\n"


QUOTED_BOOT = b'{"kind":"capture","v":2,"boot":"b\\"o","n":1,"knob":"k","value":"1"}\n'
"""Found by random tests: what is written again must be whole, too."""

HARNESS = r"""
/* Reads and settles each save of a file of saves: 4 bytes of length (little-endian), then the save. */
#include "restorer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void silent(const char *line) { (void)line; }
int main(int argc, char *argv[])
{
    static save_t save;
    static char data[1 << 20];
    char error[LINE], path[PATH], command[2 * PATH];
    unsigned char size[4];
    FILE *all = fopen(argv[1], "rb");
    snprintf(path, sizeof path, "%s/captured.jsonl", argv[2]);
    snprintf(command, sizeof command, "%s.old-1", path);
    while (argc == 3 && all && fread(size, 1, 4, all) == 4) {
        size_t length = size[0] | size[1] << 8 | size[2] << 16, n_left = 0;
        if (length > sizeof data || fread(data, 1, length, all) != length) return 9;
        FILE *file = fopen(path, "wb");
        fwrite(data, 1, length, file);
        fclose(file);
        bool is_read = save_read(&save, path, error, silent);
        for (size_t at = 0; is_read && at < save.n; at++) {
            outcome_t outcome;
            world_t nowhere = {"/nonexistent"};
            rule_put_back(&nowhere, &save.records[at], false, false, &outcome);
            save.records[at].is_settled = at % 2;
            n_left += !save.records[at].is_settled;
        }
        printf("%d %s\n", is_read, save.lost[0] ? "lost" : "whole");
        if (is_read && !save_settle(&save, error, silent)) { printf("%s\n", error); return 8; }
        save_free(&save);
        if (is_read && n_left) {
            if (!save_read(&save, path, error, silent) || save.lost[0] || save.n != n_left) return 7;
            save_free(&save);
        }
        unlink(path);
        unlink(command);
    }
    return 0;
}
"""


@pytest.mark.usefixtures("restorer")  # which skips where the sanitizers are missing
@pytest.mark.timeout(LONG_S)
def test_no_damage_to_a_save_upsets_the_restorer_or_passes_for_a_whole_one(tmp_path: Path) -> None:
    node, path = file_node(tmp_path / "node"), tmp_path / "captured.jsonl"
    moved(node, path, 3)
    whole = path.read_bytes()
    harness = tmp_path / "harness.c"
    harness.write_text(HARNESS)
    sources = [file for file in (Path(__file__).parents[2] / "nodectl/csrc").glob("*.c") if file.stem != "main"]
    program = tmp_path / "harness"
    command = [
        "cc",
        "-std=c11",
        "-D_GNU_SOURCE",
        *SANITIZERS,
        f"-I{sources[0].parent}",
        "-o",
        program,
        harness,
        *sources,
    ]
    built = subprocess.run([*command, "-ldl"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    saves = [whole, *damaged(whole)]
    n_damaged = len(saves)
    saves += [with_checksums(save) for save in saves[-300:]]
    saves += [
        with_checksums(b"123456789" + QUOTED_BOOT),
        with_checksums(whole.replace(b"node/cap_mw", b"node/ca\0_mw")),
    ]
    everything = tmp_path / "saves"
    everything.write_bytes(b"".join(len(save).to_bytes(4, "little") + save for save in saves))
    place = tmp_path / "place"
    place.mkdir()
    limited = processor_time(600)
    ran = subprocess.run([program, everything, place], capture_output=True, text=True, preexec_fn=limited)
    assert ran.returncode == 0, ran.stdout[-500:] + ran.stderr[-4000:]
    found = ran.stdout.splitlines()
    assert len(found) == len(saves) > 2000
    assert found[0] == "1 whole" and set(found[1 : 1 + 2 * len(whole)]) == {"1 lost"}
    again = tmp_path / "again.jsonl"
    for number in range(0, n_damaged, 7):  # Python thinks the same of each
        again.write_bytes(saves[number])
        assert (found[number] == "1 lost") == bool(read_save(str(again)).lost), saves[number]


def test_a_damaged_save_is_kept_and_the_exit_status_says_so(restorer: Path, tmp_path: Path) -> None:
    node, path = file_node(tmp_path / "node"), tmp_path / "captured.jsonl"
    moved(node, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    done = restore(restorer, node, path, "--dry-run")
    assert done.returncode == 1 and "it would be kept" in done.stdout and limits(node) == [1_200_000] * 4
    done = restore(restorer, node, path)
    assert done.returncode == 1 and f"kept as {path}.old-1; other knobs may have been moved" in done.stdout
    assert Path(f"{path}.old-1").read_bytes() == whole[:-5]


@pytest.mark.parametrize(
    "arguments",
    [(), ("undo",), ("restore", "more"), ("restore", "--odd"), ("run",), ("run", "--lease", "0", "--", "true")],
)
def test_wrong_use_is_one_line_and_status_2(restorer: Path, arguments: tuple[str, ...]) -> None:
    done = run(restorer, *arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--help" in done.stderr
