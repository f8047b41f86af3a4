"""``nodectl-hook``, a C program without Python: by it Slurm's hooks notify the cluster agent, and wait for caps."""
