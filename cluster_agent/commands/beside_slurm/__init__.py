"""Commands for a partition whose jobs are those of another manager, a Slurm or an OAR."""
