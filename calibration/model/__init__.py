"""Time and power of an application over nodes, cores and package cap, from few measurements (RMAP's model, improved).

Imports numpy alone and writes nothing but the file of ``configuration_table``. It measures nothing: the caller does,
at the points that ``sequential_design`` chooses.
"""
