"""Policies that know watts or joules. Named in ``policies.registry``."""
