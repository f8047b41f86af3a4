"""Jobs on this node: started at most once, supervised by a process of their own, recovered when the agent restarts.

Imports ``foundation.wire`` and ``foundation.shell``. Knows neither instruments nor knobs.
"""
