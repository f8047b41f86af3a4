"""The links of the cluster agent: to its nodes over CURVE, to people on this machine over a Unix socket."""
