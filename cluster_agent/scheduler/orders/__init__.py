"""Orders of the queue that the native scheduler knows: priorities by past usage, and formulas."""
