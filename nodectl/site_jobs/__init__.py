"""The jobs that the site's own manager, Slurm for example, runs on this node: their modes, and what they draw.

A prolog and an epilog of that manager say which jobs there are, by files. May import ``nodectl.config``,
``nodectl.decide`` and ``pmu``; never moves a knob.
"""
