"""A real Slurm on emulated nodes replays a part of a job log, faster than it was (``clusterctl riplay``)."""
