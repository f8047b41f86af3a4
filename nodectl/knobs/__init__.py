"""The settings this agent can move: one file per kind, found by what the node has or by name.

=================================  ==========================================  =====================
name                               what it writes                              put back by
=================================  ==========================================  =====================
``cpu/policyN/max_khz``            cpufreq ``scaling_max_freq``                writing the old value
``gpu/N/sm_clock_mhz``             NVML locked clocks, value..value            unlocking (no getter)
``gpu/N/power_limit_mw``           NVML power management limit                 writing the old value
``rapl/package-N/long_term_uw``    powercap long-term limit of the package     writing the old value
``rapl/package-N/short_term_uw``   powercap short-term limit of the package    writing the old value
``scmi+URL#DOMAIN/cap_mw``         an SCMI controller's cap on a power domain  setting or withdrawing
``scmi+URL#DOMAIN/limit_khz``      the same, upper limit of a clock            setting the old value
``scmi+URL#DOMAIN/level_khz``      the same, its level                         setting the old value
=================================  ==========================================  =====================
"""

from nodectl.knobs.api import Knob, KnobError, Outcome, Reason, Status
from nodectl.knobs.effect import EffectWatch
from nodectl.knobs.find import KnobFinder, find_knobs, open_knob

__all__ = ["EffectWatch", "Knob", "KnobError", "KnobFinder", "Outcome", "Reason", "Status", "find_knobs", "open_knob"]
