"""Instruments of a compute node, read only: perf counters, RAPL energy, NVML, hwmon and cpufreq.

Every reading has unit, time and quality; a missing value is never zero. Nothing here writes a knob or decides
anything.
"""
