"""Next to Slurm: what that runs on the nodes, as its hooks notify and as its queue confirms, and its configuration."""
