"""How is one point of a node measured, and which point next? Sensors, knobs and kernels of one node in one session.

May import nodectl, pmu and calibration.kernels. Never imports the twin, and never moves a knob but through the writer.
"""
