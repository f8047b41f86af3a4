"""The live cluster agent: one partition under a budget, with its jobs."""
