"""Which model predicts now, how well has it done, and who may replace it? Trained, run and judged by ``clusterctl
models``, one process that ends. Imports ``prediction``, ``history``, ``thermal_hazard`` and ``foundation``."""
