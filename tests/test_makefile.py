"""`make clean`, tried on a folder that looks like a checkout which has been built; and each target that is named has a
rule, and one only."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[1]
BUILT = ("pmu/_native.abi3.so", "nodectl/_progress.abi3.so", "twin/nvml/libnvidia-ml.so.1", "firmware_bridge/x.o")
KEPT = ("pmu/node.py", "nodectl/loop/agent.py", "cluster_agent/cli.py", ".venv/bin/nodectl")


def test_after_clean_nothing_built_is_left_and_setup_builds_again(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in (*BUILT, *KEPT, ".venv/nodectl.stamp", "out/demo.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    subprocess.run(["make", "-s", "clean"], cwd=tmp_path, check=True, timeout=PATIENCE_S)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*KEPT, "Makefile"}  # without its stamp scripts/setup.sh builds


def test_every_target_that_is_named_has_one_rule() -> None:
    text = (ROOT / "Makefile").read_text()
    named = re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)[0].split()
    shown = re.findall(r'^\t@echo "make ([\w-]+)', text, re.MULTILINE)
    rules = [name for name in re.findall(r"^([\w-]+):", text, re.MULTILINE) if name.islower()]
    assert len(named) > 15 and set(shown) <= set(named)
    assert sorted(rules) == sorted(named)
