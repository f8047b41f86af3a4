"""`sacct`'s ConsumedEnergy from nodectl's joules, by a plug-in of ours in a real Slurm; of shared nodes, too.

A real Slurm 22.05 with four nodes (scripts/slurm.sh) and emulated nodes with the real agent, as in slurm_joules. The
plug-in (`slurm_energy/acct_gather_energy_nodectl.c`) is built against Slurm's public header alone (Debian's
`libslurm-dev`, unpacked, not installed) and reads the page of the first node. Two jobs have that node for themselves,
then two share it. Each is compared with the page of the node and with sacct; Slurm's own plug-ins book all of the node
to both that share it. All watts are EMULATED. Needs root.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.experiment import save
from benchmarks.slurm import options
from benchmarks.slurm_joules import HALF, JOB, MACHINE, NODES, SHARE, hooked, page_of
from foundation.shell.text_table import render
from lab.emulated.watts import watts_of
from tests.slurm.site import Site

SOURCE: Final = Path(__file__).parent / "slurm_energy" / "acct_gather_energy_nodectl.c"
PLUGINS: Final = "/usr/lib/x86_64-linux-gnu/slurm-wlm"
NODE: Final = NODES[0]

SETTINGS: Final = """
sed -i 's,^JobAcctGatherType=.*,JobAcctGatherType=jobacct_gather/linux,' /etc/slurm/slurm.conf
cat >>/etc/slurm/slurm.conf <<END
AcctGatherEnergyType=acct_gather_energy/nodectl
AcctGatherNodeFreq=1
JobAcctGatherFrequency=task=1,energy=1
END
ln -sfn {run} /run/nodectl
for node in {nodes}; do
    pid=$(cat /run/slurm/slurmd.$node.pid); kill $pid
    while kill -0 $pid 2>/dev/null; do sleep 0.1; done
done
"""


def build(at: Path) -> None:
    """The plug-in at ``at``; ``CalledProcessError`` if Slurm's header cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        get = "apt-get download -qq -o APT::Sandbox::User=root libslurm-dev && dpkg -x libslurm-dev_*.deb ."
        subprocess.run(["sh", "-euc", get], cwd=folder, check=True, capture_output=True)
        flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-I{folder}/usr/include"]
        subprocess.run(["cc", *flags, SOURCE, "-o", at], check=True)


def measure(seconds: float) -> list[dict[str, Any]]:
    watts, _ = watts_of(MACHINE)
    with Site(len(NODES)) as site, hooked(site, SHARE * watts.tdp_w * len(NODES)) as (_, sockets, _trace):
        build(site.at / "plugin.so")
        (site.at / "job.py").write_text(JOB)
        (site.at / "half.sh").write_text(HALF)
        site.run("cp", str(site.at / "plugin.so"), f"{PLUGINS}/acct_gather_energy_nodectl.so")
        site.shell(SETTINGS.format(run=site.at / "run" / NODE, nodes=" ".join(NODES)))
        for name in NODES:
            site.run("slurmd", "-N", name)
        site.restart_controller()
        place = ["python3", str(site.at / "job.py"), str(sockets)]
        jobs = {_submit(site, [*place, workload, str(seconds)]): (workload, "alone") for workload in ("hpl", "stream")}
        _until_empty(site)
        site.run("scontrol", "update", "partitionname=all", "oversubscribe=no")
        for workload in ("hpl", "stream"):
            job = _submit(site, ["sh", str(site.at / "half.sh"), *place, workload, str(seconds)], "-c2")
            jobs[job] = workload, "shared"
        _until_empty(site)
        site.until(lambda: len(_sacct(site, list(jobs))) == len(jobs), patience_s=60)
        page, booked = page_of(site.at / "run" / NODE / "job-joules"), _sacct(site, list(jobs))
    return [{"job": job, "workload": workload, "node": how, "page_j": page[job].joules, "sacct_j": booked[job]}
            for job, (workload, how) in jobs.items()]  # fmt: skip


def _submit(site: Site, words: list[str], *more: str) -> str:
    options = ["sbatch", "--parsable", "-n1", *more, "-w", NODE, "-o", "/dev/null", "--wrap", " ".join(words)]
    return site.run(*options, user="alice").strip()


def _until_empty(site: Site) -> None:
    site.until(lambda: not site.run("squeue", "-h").strip(), patience_s=600)
    time.sleep(2.0)


def _sacct(site: Site, jobs: list[str]) -> dict[str, float]:
    """Joules of the batch step of each job."""
    lines = site.run("sacct", "-nP", "-j", ",".join(jobs), "-o", "jobid,consumedenergyraw").splitlines()
    rows = [line.split("|") for line in lines]
    return {name.removesuffix(".batch"): float(joules) for name, joules in rows if name.endswith(".batch") and joules}


def main(arguments: list[str] | None = None) -> int:
    is_quick = options(arguments, __doc__, "jobs of 8 s instead of 20 s")
    if is_quick is None:
        return 0
    try:
        found = measure(8.0 if is_quick else 20.0)
    except subprocess.CalledProcessError as error:
        print(f"not measured: the plug-in cannot be built: {error}")
        return 0
    print("EMULATED: joules of jobs on one node, by nodectl's page and by sacct with nodectl's plug-in")
    print(render(("job", "workload", "node", "J page", "J sacct", "off"), [
        (one["job"], one["workload"], one["node"], f"{one['page_j']:.0f}", f"{one['sacct_j']:.0f}",
         f"{one['sacct_j'] / one['page_j'] - 1:+.1%}")
        for one in found
    ]))  # fmt: skip
    save("slurm_plugin", {"jobs": found})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
