"""The settings this agent can move. Each kind is one file, and a row of ``registry.py``, which lists what they write.

Knobs behind an SCMI controller come from the settings and not from the node (``nodectl.controller.scmi_knobs``,
imported only where a restore names one). Otherwise this room imports ``pmu`` alone. It never decides, and only
``nodectl.write`` calls a knob's ``set``.
"""

from nodectl.knobs.api import Knob, KnobError, Outcome, Reason, Status
from nodectl.knobs.effect import EffectWatch
from nodectl.knobs.find import KnobFinder, find_knobs, open_knob

__all__ = ["EffectWatch", "Knob", "KnobError", "KnobFinder", "Outcome", "Reason", "Status", "find_knobs", "open_knob"]
