"""Next to OAR: its jobs, its configuration and its admission rules. May import ``cluster_agent.slurm``."""
