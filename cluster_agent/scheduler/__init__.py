"""The batch scheduler: one engine for a live partition and for replays of job logs.

``policy_phases`` says what a policy is made of, ``interfaces`` what the engine needs of a clock and a machine, ``loop``
is the engine's event loop. The scheduler itself is in C (``native``). The tests have it again in plain Python that
reads like the papers (``tests/oracle``), and a property test checks that the schedules are equal.
"""
