"""The power of a partition: the ledger that keeps it below its budget, and the sharers that say who needs it."""
