"""The power of a partition: the ledger, which keeps it below the budget, and the sharers, which divide the budget."""
