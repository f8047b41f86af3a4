"""The scheduler in C (``cluster_agent/csrc``): its tables, its calls, and the replay of a whole log."""
