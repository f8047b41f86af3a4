"""The batch scheduler: one engine for a live partition and for replays of job logs.

``phases`` says what a policy is made of, ``interfaces`` what the engine needs of a clock and a machine, ``loop`` is the
engine's event loop. The scheduler itself exists twice: ``native`` (C, what runs) and ``reference`` (plain Python,
what reads like the papers); a property test holds their schedules equal.
"""
