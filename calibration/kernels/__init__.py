"""Kernels: programs with a known amount of work, and the port through which a calibration runs them.

Imports nodectl's errors and pmu. Never imports the twin: an emulated node executes a kernel by its own truth, behind
the same port, and says that it is emulated.
"""
