"""The writer process: who may write, for how long, and who puts knobs back when the agent is gone?

Imports ``nodectl.write``, ``nodectl.knobs`` and ``pmu``; the agent imports only ``remote_writer`` and ``root_files``.
The process decides nothing and knows no policy.
"""
