"""Train trees on `clusterctl history export`, and write a model that clusterctl takes: FILE.py, and the trees next to
it."""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import os
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

FEWEST = 100
PLACES = 16
"""Hashed places for users, and as many for names."""

TEMPLATE = '''"""Trees on nodes, walltime, and hashes of user and name. Written by train.py."""

import hashlib
import math
import zlib
from pathlib import Path

import numpy as np

from cluster_agent.prediction.models import Model, NothingToSayError, Quantiles

TREES = Path(__file__).with_name({trees!r})
SHA256 = {sha256!r}
PLACES = {places}
HIGHEST = {highest!r}


def features(user, name, nodes, walltime_s):
    row = [0.0] * (2 + 2 * PLACES)
    row[:2] = math.log2(max(nodes, 1)), math.log2(max(walltime_s, 60))
    row[2 + zlib.crc32(user.encode()) % PLACES] = 1.0
    row[2 + PLACES + zlib.crc32(name.encode()) % PLACES] = 1.0
    return row


class Trees:
    def __init__(self):
        content = TREES.read_bytes()
        if hashlib.sha256(content).hexdigest() != SHA256:
            raise ValueError(f"{{TREES}} is not the file that was trained: train again")
{load}

    def learn(self, ended):
        """Trees are trained again, not on line."""

    def predict(self, submissions):
        found = []
        for one in submissions:
            row = features(one.login or one.user, one.title or one.text, one.units, one.request_s)
            watts = math.exp(self.run(np.array([row], np.float32)))
            if not math.isfinite(watts):
                raise NothingToSayError
            found.append(Quantiles(watts * one.units, watts * one.units, max(watts, HIGHEST) * one.units))
        return found


MODEL = Model("boosted", "gradient-boosted trees", Trees)
'''
ONNX = """        from onnxruntime import InferenceSession, SessionOptions

        options = SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = InferenceSession(content, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        self.run = lambda rows: float(session.run(None, {name: rows})[0].ravel()[0])"""
LIGHTGBM = """        from lightgbm import Booster

        booster = Booster(model_str=content.decode())
        self.run = lambda rows: float(booster.predict(rows, num_threads=1)[0])"""


def features(user: str, name: str, nodes: int, walltime_s: int) -> list[float]:
    row = [0.0] * (2 + 2 * PLACES)
    row[:2] = math.log2(max(nodes, 1)), math.log2(max(walltime_s, 60))
    row[2 + zlib.crc32(user.encode()) % PLACES] = 1.0
    row[2 + PLACES + zlib.crc32(name.encode()) % PLACES] = 1.0
    return row


def read(path: str) -> tuple[np.ndarray, np.ndarray]:
    rows, watts = [], []
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            drawn_w, nodes = float(row["watts"] or "nan"), int(row["nodes"])
            if drawn_w > 0 and math.isfinite(drawn_w) and nodes > 0:
                rows.append(features(row["user"], row["application"], nodes, int(row["request_s"] or 0)))
                watts.append(drawn_w / nodes)
    return np.array(rows, np.float32), np.array(watts)


def trained(rows: np.ndarray, watts: np.ndarray, with_lightgbm: bool) -> bytes:
    """The trees as data. Threads and seeds are fixed: the same jobs give the same trees."""
    if with_lightgbm:
        import lightgbm

        given = {"objective": "regression_l1", "num_threads": 1, "seed": 1, "deterministic": True, "verbose": -1}
        data = lightgbm.Dataset(rows, np.log(watts))
        return lightgbm.train(given, data, num_boost_round=100).model_to_string().encode()
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.ensemble import GradientBoostingRegressor

    trees = GradientBoostingRegressor(n_estimators=100, random_state=1).fit(rows, np.log(watts))
    shape = [("rows", FloatTensorType([None, rows.shape[1]]))]
    return convert_sklearn(trees, initial_types=shape).SerializeToString()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", help="what `clusterctl history export` wrote")
    parser.add_argument("file", type=Path, help="the model, FILE.py")
    parser.add_argument("--lightgbm", action="store_true", help="LightGBM in place of scikit-learn and ONNX Runtime")
    given = parser.parse_args(arguments)
    rows, watts = read(given.jobs)
    if len(rows) < FEWEST:
        print(f"{given.jobs}: {len(rows)} jobs with metered watts; {FEWEST} are needed", file=sys.stderr)
        return 1
    content = trained(rows, watts, given.lightgbm)
    trees = given.file.with_suffix(".txt" if given.lightgbm else ".onnx")
    trees.write_bytes(content)
    text = TEMPLATE.format(
        trees=trees.name, sha256=hashlib.sha256(content).hexdigest(), places=PLACES, highest=float(watts.max()),
        load=LIGHTGBM if given.lightgbm else ONNX,
    )  # fmt: skip
    given.file.write_text(text)
    for path in (trees, given.file):
        os.chmod(path, 0o600)
    print(f"{given.file}: trained on {len(rows)} jobs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
