"""The twin's ``nvidia-smi -mig`` and ``nvidia-smi mig``, in the forms of the driver's program."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Smi = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def smi(run_in_node: Smi, write_state: Any, cards: Any) -> Smi:
    """Run nvidia-smi with options; the cards stay as it leaves them."""
    write_state(cards)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return run_in_node(sys.executable, "-m", "twin.smi.smi_program", *options)

    return run


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


PROFILES = """\
+-----------------------------------------------------------------------------+
| GPU instance profiles:                                                      |
| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                              Free/Total   GiB              CE    JPEG  OFA  |
|=============================================================================|
|   0  MIG 1g.10gb       19     7/7        9.50       No     14     0     0   |
|                                                             1     0     0   |
+-----------------------------------------------------------------------------+
|   0  MIG 1g.10gb+me    20     1/1        9.50       No     14     1     0   |
|                                                             1     1     1   |
+-----------------------------------------------------------------------------+
"""
"""The first rows of a listing of such a card."""


def test_a_card_is_divided_as_in_the_user_guide_and_made_whole_again(smi: Smi) -> None:
    assert said(smi("-i", "0", "-mig", "1")) == "Enabled MIG Mode for GPU 00000000:07:00.0\nAll done.\n"
    listing = said(smi("mig", "-lgip"))
    assert listing.splitlines()[: len(PROFILES.splitlines())] == PROFILES.splitlines()
    assert "GPU  0 Profile ID  9 Placements: {0,4}:4\nGPU  0 Profile ID  5 Placement : {0}:4\n" in said(
        smi("mig", "-lgipp")
    )
    made = said(smi("mig", "-cgi", "9,3g.40gb", "-C"))
    assert made.splitlines()[:2] == [
        "Successfully created GPU instance ID  1 on GPU  0 using profile MIG 3g.40gb (ID  9)",
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  1 using profile MIG 3g.40gb (ID  2)",
    ]
    assert "|   0  MIG 3g.40gb          9        1          4:4     |" in said(smi("mig", "-lgi"))
    assert "|   0      2       MIG 3g.40gb          2         0          0:3     |" in said(smi("mig", "-lci"))
    devices = re.findall(r"^  MIG 3g\.40gb         Device  (\d): \(UUID: (MIG-[0-9a-f-]{36})\)$", said(smi("-L")), re.M)
    assert [number for number, _ in devices] == ["0", "1"] and devices[0][1] != devices[1][1]
    assert said(smi("mig", "-dci", "-dgi")).splitlines()[-1] == "Successfully destroyed GPU instance ID  2 from GPU  0"
    assert said(smi("-i", "0", "-mig", "0")) == "Disabled MIG Mode for GPU 00000000:07:00.0\nAll done.\n"


def test_a_gpu_instance_is_divided_into_compute_instances_at_wanted_places(smi: Smi) -> None:
    said(smi("-i", "0", "-mig", "1"))
    said(smi("mig", "-cgi", "2g.20gb:2"))
    assert "|   0  MIG 2g.20gb         14        6          2:2     |" in said(smi("mig", "-lgi"))
    assert len(said(smi("mig", "-gi", "6", "-cci", "0,0")).splitlines()) == 2
    assert "|   0      6       MIG 1c.2g.20gb       0      0/2           14        1     0     0   |" in said(
        smi("mig", "-gi", "6", "-lcip")
    )
    assert "MIG 1c.2g.20gb" in said(smi("-L"))


def test_what_does_not_fit_or_is_in_use_is_refused_and_nothing_is_changed(
    smi: Smi, tmp_path: Path, read_state: Any, write_state: Any
) -> None:
    assert (smi("mig", "-lgi").stdout, smi("mig", "-lgi").returncode) == ("No MIG-enabled devices found.\n", 6)
    said(smi("-i", "0", "-mig", "1"))
    said(smi("mig", "-cgi", "3g.40gb", "-C"))
    before = (tmp_path / "gpus").read_bytes()
    for options, line in (
        (("-cgi", "7g.80gb"), "Unable to create a GPU instance on GPU  0 using profile 0: Insufficient Resources"),
        (("-cgi", "9:4"), "Unable to create a GPU instance on GPU  0 using profile 9: Insufficient Resources"),
        (
            ("-cgi", "5g.50gb"),
            "ERROR: 5g.50gb is no profile of GPU instances of GPU 0. `nvidia-smi mig -lgip` lists them.",
        ),
        (("-dgi",), "Unable to destroy GPU instance ID  1 from GPU  0: In use by another client"),
        (
            ("-gi", "1", "-cci", "0"),
            "Unable to create a compute instance on GPU  0 GPU instance ID  1 using profile 0: ",
        ),
    ):
        done = smi("mig", *options)
        assert done.returncode != 0 and done.stdout.startswith(line) and done.stderr == ""
    seconds = [at for at, (a, b) in enumerate(zip(before, (tmp_path / "gpus").read_bytes(), strict=True)) if a != b]
    assert len(seconds) <= 4  # the count of requests
    busy = read_state(tmp_path / "gpus")
    busy.gpu[1].process_pid = 4711
    write_state(busy)
    warned = smi("-i", "1", "-mig", "1")
    assert "MIG mode is in pending enable state for GPU 00000000:47:00.0:In use by another client" in warned.stdout
    assert smi("-i", "2", "-mig", "1").stdout.startswith("Changing MIG mode is not supported for GPU 00000000:87:00.0.")


def test_the_task_prolog_of_the_page_translates_slurms_numbers_into_uuids(
    smi: Smi, run_in_node: Smi, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "gpu-slices.md").read_text()
    script = re.search(r"```sh\n(#!/bin/sh\n# TaskProlog.*?)```", page, re.DOTALL)
    assert script
    program = f'#!/bin/sh\nexec {sys.executable} -m twin.smi.smi_program "$@"\n'
    for name, text in (("task-prolog", script[1]), ("nvidia-smi", program)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    said(smi("-i", "0", "-mig", "1"))
    said(smi("mig", "-cgi", "9,9", "-C"))
    uuids = re.findall(r"MIG-[0-9a-f-]{36}", said(smi("-L")))
    for given, exported in (("1", uuids[1]), ("0,1", ",".join(uuids)), ("", ""), (uuids[0], "")):
        environment = (f"CUDA_VISIBLE_DEVICES={given}", f"PATH={tmp_path}:/usr/bin:/bin")
        done = said(run_in_node("env", *environment, str(tmp_path / "task-prolog")))
        assert done == (f"export CUDA_VISIBLE_DEVICES={exported}\n" if exported else "")
