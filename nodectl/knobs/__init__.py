"""The settings this agent can move, one file per kind."""

from nodectl.knobs.api import Knob, KnobError, Outcome, Reason, Status

__all__ = ["Knob", "KnobError", "Outcome", "Reason", "Status"]
