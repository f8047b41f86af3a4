"""The twin for unmodified programs: files in /sys, NVML and hardware counters, in a mount namespace.

``launcher`` runs a command there; ``node_server`` is the process that serves what the command sees; ``namespace`` makes
the mounts; ``containment`` proves, before the command starts, that it cannot reach the host through them.
"""
