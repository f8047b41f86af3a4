"""Jobs on this node: started at most once, supervised by a process of their own, recovered when the agent restarts.

Imports ``foundation.wire``, ``foundation.shell``, and of instruments what a job itself writes: its progress and hints.
Knows no knobs.
"""
