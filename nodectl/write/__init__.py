"""How a knob is captured, written, verified, restored and locked: the only room that moves hardware.

Imports ``nodectl.knobs`` and ``nodectl.controller``. Nothing else calls a knob's ``set``.
"""
