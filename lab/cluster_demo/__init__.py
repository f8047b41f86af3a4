"""``clusterctl demo``: a partition of emulated nodes under a budget, run once with each sharer."""
