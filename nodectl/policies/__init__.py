"""The policies, one file each; every one is a pure function of state and sample."""
