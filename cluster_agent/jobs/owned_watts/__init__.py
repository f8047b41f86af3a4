"""The watts of a live partition whose policy owns them: of like nodes, of nodes that differ, of configurations."""
