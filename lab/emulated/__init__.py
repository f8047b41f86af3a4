"""An emulated node as a member of a cluster: the real agent on a twin in real time, whose jobs are twin workloads."""
