"""Limits: how low the node can be capped, how soon its knobs have an effect, how well its caps are kept.

Imports nodectl and pmu. Moves knobs only through the protocols of ``probes``, and measures nothing by itself: clock,
watts, heartbeat and knobs are given to it, of a node, of a served emulated one, or of one in virtual time.
"""
