"""Who needs the watts of a budget: one method a file, named in ``registry``. What they do: docs/policies.md."""
