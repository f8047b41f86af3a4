"""The instruments of a node, one file each: how it is found, read, and what its numbers mean.

Imports the types of ``pmu`` (``readings``, ``findings``, ``ports``). Read only.
"""
