"""A model of the thermal hazard of one room, as a file: nodes, their thresholds, and weights (``thermal_hazard``)."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cluster_agent.model_service.group_table import TableError, arrays_of
from cluster_agent.thermal_hazard.hazard_features import NAMES, Readings
from cluster_agent.thermal_hazard.hazard_label import Floats
from cluster_agent.thermal_hazard.hazard_model import HazardModel

SHAPES: Final = {
    "nodes": (None, "U"), "threshold_c": (None, "f"), "mean": (len(NAMES), "f"), "sigma": (len(NAMES), "f"),
    "weights": (len(NAMES), "f"), "intercept_threshold_share": (3, "f"),
}  # fmt: skip
"""Of each array its length, if that is given, and the kind of its values."""


@dataclass(frozen=True)
class RoomModel:
    """``threshold_c``: degrees of each node, NaN for one with too few readings. ``share``: of readings above them from
    which on six hours are in hazard."""

    nodes: list[str]
    threshold_c: Floats
    model: HazardModel
    share: float

    def content(self) -> bytes:
        """The file."""
        of = self.model
        file = io.BytesIO()
        np.savez(
            file, allow_pickle=False, nodes=np.array(self.nodes), threshold_c=self.threshold_c, mean=np.array(of.mean),
            sigma=np.array(of.sigma), weights=np.array(of.weights),
            intercept_threshold_share=np.array([of.intercept, of.threshold, self.share]),
        )  # fmt: skip
        return file.getvalue()

    @classmethod
    def of_content(cls, content: bytes) -> RoomModel:
        """``TableError`` for anything else than a model of a room."""
        arrays = arrays_of(content)
        if problem := _problem(arrays):
            raise TableError(problem)
        mean, sigma, weights = (arrays[name].tolist() for name in ("mean", "sigma", "weights"))
        intercept, threshold, share = arrays["intercept_threshold_share"].tolist()
        model = HazardModel(mean, sigma, weights, intercept, threshold)
        return cls(arrays["nodes"].tolist(), arrays["threshold_c"], model, share)

    def of(self, readings: Readings, nodes: list[str]) -> Readings:
        """These readings with the columns of this model's nodes; one that has none is missing. Others are left out."""
        places = {name: place for place, name in enumerate(nodes)}
        inlet_c = np.full((len(readings.inlet_c), len(self.nodes)), np.nan)
        for column, name in enumerate(self.nodes):
            if name in places:
                inlet_c[:, column] = readings.inlet_c[:, places[name]]
        return Readings(readings.start_s, readings.step_s, inlet_c, readings.power_w, readings.outdoor_c)


def _problem(arrays: dict[str, npt.NDArray[Any]]) -> str:
    if set(arrays) != set(SHAPES):
        return "has other arrays than a model of a room"
    for name, (length, kind) in SHAPES.items():
        array = arrays[name]
        if array.ndim != 1 or array.dtype.kind != kind or length not in (None, len(array)):
            return f"has {name} of another shape than a model of a room"
        if kind == "f" and name != "threshold_c" and not np.isfinite(array).all():
            return "predicts what is no number (NaN)"
    nodes, threshold_c = arrays["nodes"], arrays["threshold_c"]
    if len(nodes) != len(threshold_c) or len(np.unique(nodes)) != len(nodes):
        return "has nodes without a threshold, or twice"
    is_sound = ((arrays["intercept_threshold_share"][1:] > 0) & (arrays["intercept_threshold_share"][1:] < 1)).all()
    return "" if is_sound and (arrays["sigma"] > 0).all() else "has a chance that is always or never an alarm"
