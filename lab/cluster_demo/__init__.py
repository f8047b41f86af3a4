"""``clusterctl demo``: a whole partition of emulated nodes under a budget, shared by one sharer after the other."""
