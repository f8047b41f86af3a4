"""The twin shown to unmodified programs: files in /sys, NVML, and hardware counters, in a mount namespace of their own.

``launcher`` runs a command there; ``server`` is the process behind what the command sees; ``namespace`` arranges the
mounts and ``containment`` proves, before the command starts, that nothing real can be reached through them.
"""
