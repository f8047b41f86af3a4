"""The cluster agent at work: a partition under a budget, live."""
