"""What do watts cost, and what do jobs earn? Profiles of watts from prices, and plans that are judged by money.

Imports ``cluster_agent.scheduler`` and ``cluster_agent.workloads``; neither knows money. Sets no budget: what comes out
is a profile, a file that ``--cap``, ``energy-budget`` and a budget's schedule read.
"""
