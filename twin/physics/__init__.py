"""The emulated node's physics: speed, power, energy and counters over time. The model is in C (``twin/csrc``)."""
