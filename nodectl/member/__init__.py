"""This node as a member of a cluster: its lease on a cap, its reports, its declarations.

Imports ``foundation.wire`` and ``nodectl.jobs``, and of ``nodectl.site_jobs`` how joules are divided. The lease never
reads a clock; callers pass the time.
"""
