"""Commands for a partition whose jobs are a Slurm's."""
