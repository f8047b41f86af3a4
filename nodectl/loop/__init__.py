"""What happens once per period, and what a run came to.

May import every room of ``nodectl`` except the command line. Never touches a device: instruments are read by ``pmu``,
knobs are moved by ``nodectl.write``.
"""
