"""How a budget is divided among nodes: one sharer per file, named in ``registry``. What they do: docs/policies.md."""
