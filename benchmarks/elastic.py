"""How long a job waits for its nodes until pods of Kubernetes have left them, and how many of these end in peace.

`clusterctl elastic drain` as a process, as a prolog calls it, on nodes of an API server that is emulated after its
published interface; the client is the official one. Each node has a hundred pods. A pod takes from 0 to 8 s to end
after SIGTERM; a tenth is guarded by a budget that refuses its eviction, and ten more are bound after the first
eviction. Grace and limit are the published 5 and 15 s. EMULATED.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.experiment import save
from lab.emulated.emulated_kubernetes import EmulatedKubernetes, EmulatedPod

GRACE_S, LIMIT_S = 5.0, 15.0
PODS, LATE = 100, 10


def measure(nodes: int, seed: int, at: Path) -> dict[str, Any]:
    """One job on so many nodes."""
    random, names = Random(seed), [f"n{number:02d}" for number in range(nodes)]
    with EmulatedKubernetes(names, at) as server:
        for name in names:
            for number in range(PODS):
                guarded = -1 if number % 10 == 0 else 0
                server.run(EmulatedPod(f"{name}-{number}", name, random.uniform(0, 8), guarded=guarded))
            server.late += [EmulatedPod(f"{name}-late{number}", name, random.uniform(0, 8)) for number in range(LATE)]
        (at / "elastic.toml").write_text(
            f'state = "{at / "state"}"\ngrace_s = {GRACE_S}\nlimit_s = {LIMIT_S}\n'
            f'[kubernetes]\nkubeconfig = "{server.kubeconfig}"\n'
        )
        command = [sys.executable, "-m", "cluster_agent.cli", "elastic", "drain", "7", *names]
        begun_s = time.monotonic()
        done = subprocess.run([*command, "--settings", str(at / "elastic.toml")], capture_output=True, text=True)
        took_s = time.monotonic() - begun_s
        can = [pod for pod in server.ended if pod.ends_s <= GRACE_S]
        return {
            "nodes": nodes, "took_s": took_s, "status": done.returncode, "said": done.stderr.splitlines(),
            "pods": len(server.ended), "left": len(server.pods), "can": len(can),
            "in_peace": sum(not pod.was_cut for pod in can), "cut": sum(pod.was_cut for pod in server.ended),
        }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one job instead of ten")
    options = parser.parse_args(arguments)
    rows = []
    for seed in range(1 if options.quick else 10):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(1 if seed % 2 == 0 else 4, seed, Path(folder)))
    for nodes in sorted({row["nodes"] for row in rows}):
        own = [row for row in rows if row["nodes"] == nodes]
        took = [row["took_s"] for row in own]
        can, peace = sum(row["can"] for row in own), sum(row["in_peace"] for row in own)
        print(f"{len(own)} jobs of {nodes} nodes with {PODS + LATE} pods each (EMULATED): the job starts after")
        print(f"  {median(took):.1f} s (median), {max(took):.1f} s (longest; wanted: {LIMIT_S + 1:.0f});", end=" ")
        print(f"{peace} of {can} pods that can end in {GRACE_S:.0f} s did;", end=" ")
        print(f"{sum(row['cut'] for row in own)} longer ones were cut off, {sum(row['left'] for row in own)} are left")
    save("elastic", {"rows": rows})
    return int(any(row["left"] or row["took_s"] > LIMIT_S + 1 or row["in_peace"] < 0.99 * row["can"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
