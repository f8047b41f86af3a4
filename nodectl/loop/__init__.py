"""What the agent does once per period, and the summary of a run.

May import every room of ``nodectl`` except the command line. Never touches a device: instruments are read by ``pmu``,
knobs are moved by ``nodectl.write``.
"""
