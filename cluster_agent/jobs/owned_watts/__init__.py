"""The watts of a live partition whose policy owns them: one owner, and what it counts of each kind of resources."""
