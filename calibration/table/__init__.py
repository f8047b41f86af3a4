"""What was measured, as a table: interpolated between measured clocks, with intervals, in a file that can be checked.

May import nodectl, pmu, calibration.kernels and calibration.measure.
"""
