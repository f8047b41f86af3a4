"""How one node differs from another of its type, and one run from another: off unless a Twin is given it.

Sizes are relative standard deviations. They come from measured repetitions where there are some:

* ``run_work``, ``run_gpu``, ``run_package``: 1788 points of ``cpu-gpu-caps`` (node rtx6000, runs above 20 s) with two
  to five repetitions each. The median sample deviation is 0.49 % of time, 0.47 % of GPU watts, 0.29 % of CPU watts;
  with so few repetitions that is about three quarters of the deviation (half of all samples of two are below 0.67 of
  it). Time has a heavy tail (a tenth of the points above 4 %), which is not reproduced.
* ``package``: the two processors of a node in ``power9-occ`` differ by 2.6 to 5.5 % of the watts of their core rails at
  full load. ``card``: its two GPUs by 1.7 %, idle. One pair of each says no more than the order of size.
* ``power``: the 100 ms readings of an A100 over a steady load scatter by 0.36 % (``gpu-power-sensor``).
* ``iteration``: ours; no data here has the times of single iterations.

Which parts a node has is drawn from ``node``, what a run is like from the seed of its Twin: repeated runs on one node
have the same parts.
"""

from __future__ import annotations

import msgspec

from twin.physics.curves import stream
from twin.toml_table import NotNegative

LARGEST = 3.0
"""Ours: deviations beyond this multiple are drawn again; no part that is sold differs that much."""


class Parts(msgspec.Struct, frozen=True):
    """What a node is made of in a run: watts of each GPU and of each package's cores over those of the machine file,
    and the deviations of what varies within the run."""

    gpu_w: tuple[float, ...]
    package_w: tuple[float, ...]
    power_jitter: float
    iteration_jitter: float


class Variation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Relative standard deviations: of parts, of runs, and within a run."""

    node: int = 1  # which node it is
    card: NotNegative = 0.012  # watts of a GPU
    package: NotNegative = 0.03  # watts of a package's cores
    run_work: NotNegative = 0.0065  # work of a run, thus its time
    run_gpu: NotNegative = 0.006  # watts of a GPU in a run
    run_package: NotNegative = 0.004  # watts of a package's cores in a run
    power: NotNegative = 0.0036  # watts of a GPU under load, over tenths of seconds
    iteration: NotNegative = 0.01  # ours: work of an iteration

    def parts(self, packages: int, gpus: int, seed: int) -> Parts:
        """The parts of this node as they are in the run of this seed."""
        return Parts(
            gpu_w=tuple(
                _factor(self.card, self.node, "card", gpu) * _factor(self.run_gpu, seed, "run of a card", gpu)
                for gpu in range(gpus)
            ),
            package_w=tuple(
                _factor(self.package, self.node, "package", package)
                * _factor(self.run_package, seed, "run of a package", package)
                for package in range(packages)
            ),
            power_jitter=self.power,
            iteration_jitter=self.iteration,
        )

    def work(self, seed: int, workload: str, run: int) -> float:
        """The work of this run of a workload over that of its file."""
        return _factor(self.run_work, seed, "run", workload, run)


NONE = Variation(card=0.0, package=0.0, run_work=0.0, run_gpu=0.0, run_package=0.0, power=0.0, iteration=0.0)
"""All nodes and runs are alike."""


def _factor(deviation: float, *keys: int | str) -> float:
    if not deviation:
        return 1.0
    random = stream(*keys)
    while abs(drawn := float(random.standard_normal())) > LARGEST:
        pass
    return max(1.0 + deviation * drawn, 0.1)
