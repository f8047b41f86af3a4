"""Two users' jobs on one node of a real Slurm, while slurmctld, slurmd, the head and the node's agent are killed.

As `slurm_kills`, on one emulated node whose CPUs Slurm gives out one by one (select/cons_tres, OverSubscribe=NO): each
round has two jobs of alice and two of bob, each of two of the four CPUs, so that two jobs have the node most of the
time, often of both users. alice's are tagged compute, bob's memory. What must be true besides what `slurm_kills` says:
each job known has the user who submitted it, and jobs that met on the node count as sharing it, so that none gets
joules that are the other's. After each kill of the node's agent its hardware is at its safe cap, as its unit leaves it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from benchmarks.experiment import save
from benchmarks.slurm import options
from benchmarks.slurm_kills import Round, measure, shown

USERS = ("alice", "bob")
TAGS = {"alice": "compute", "bob": "memory"}


def run_of(row: dict[str, Any]) -> tuple[str, str, int]:
    """A job that Slurm has started again after a kill is another run, which may be alone."""
    return str(row["job"]), str(row["title"]), int(row["restarts"])


class SharedRound(Round):
    """Two jobs of each user, named after him."""

    nodes: ClassVar[int] = 1
    setting: ClassVar[str] = (
        "sed -i s/OverSubscribe=EXCLUSIVE/OverSubscribe=NO/ /etc/slurm/slurm.conf; scontrol reconfigure"
    )

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.together = self.of_two_users = self.wrong_users = 0
        self.met: set[tuple[str, str, int]] = set()

    def submit(self) -> None:
        """They take half of the node's CPUs each."""
        for user in USERS * 2:
            self._serial += 1
            name = f"{user}{self._serial:04d}"
            seconds = self.drawn.uniform(0.5, 3.0)
            words = ["sbatch", "--parsable", "-n1", "-c2", "-J", name, "-o", "/dev/null"]
            script = f"touch {self.site.at}/ran/{name}; sleep {seconds:.1f}"
            comment = f"nodectl={TAGS[user]}"
            number = self.site.run(*words, "--comment", comment, "--wrap", script, user=user).strip()
            self.submitted.add((number, name))

    def heard(self, known: list[dict[str, Any]]) -> None:
        """Count the looks at which two jobs have the node, and what is wrong."""
        self.wrong_users += sum(not job["title"].startswith(job["user"]) for job in known)
        if len(known) > 1:
            self.together += 1
            self.of_two_users += len({job["user"] for job in known}) > 1
            self.met |= set(map(run_of, known))

    def found(self) -> dict[str, Any]:
        """How many had joules of their own though they had met another job."""
        rows = {run_of(row): row for row in self.head.ask("energy")}
        alone = [
            run for run in self.met & rows.keys() if not rows[run]["is_shared"] or rows[run]["energy_j"] is not None
        ]
        return {
            "together": self.together, "of_two_users": self.of_two_users, "wrong_users": self.wrong_users,
            "met": len(self.met), "with_joules_of_both": len(alone),
        }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    is_quick = options(arguments, __doc__, "2 kills of each kind instead of 20, for 5 minutes at most")
    if is_quick is None:
        return 0
    found = measure(*((2, 300.0) if is_quick else (20, 86_400.0)), kind_of=SharedRound)
    is_kept = shown(found)
    print("two jobs had the node at {together} looks, of both users at {of_two_users}; {met} jobs met another, and "
          "{with_joules_of_both} of these have joules; users mistaken: {wrong_users}".format(**found))  # fmt: skip
    save("slurm_kills_shared", found)
    return 0 if is_kept and found["of_two_users"] and not found["with_joules_of_both"] + found["wrong_users"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
