"""The SCMI protocols, one file each: their message types and nothing else."""
