"""What the cluster agent must not forget: one SQLite database."""
