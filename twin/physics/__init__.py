"""The physics of the emulated node: speed, power, energy and counters over time. The model is in C (``twin/csrc``)."""
