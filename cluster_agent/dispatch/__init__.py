"""How do jobs find nodes without a centre? Node managers, task managers, their messages, and a simulation of them.

DARDIS (Bridi, PhD thesis, Bologna 2018, §5), with what it leaves out: lost, late and doubled messages, nodes that
crash, watts. Both managers are pure: (state, message, now) gives the next state and what to send. Imports
``cluster_agent.scheduler`` and ``cluster_agent.workloads``, the command's part also the replay's measures.
"""
