"""Elastic work on the nodes of jobs: pods of Kubernetes and workers of Dask, drained while a job has the node.

As BeBiDa (REGALE D2.3 §2.3): no scheduler is changed, a prolog drains and an epilog undoes. Other than its listing, an
epilog undoes only what a prolog did, and a prolog looks again for work that came late.
"""
