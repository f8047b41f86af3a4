"""From one sample to one value per knob: policies, caps and temperature limits, joined by the arbiter.

Pure: imports types of ``pmu``, ``nodectl.policies`` and ``nodectl.knobs``. Never reads a clock, a file or a device,
so that a journal can be decided again.
"""
