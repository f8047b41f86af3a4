"""What must outlive the cluster agent: one SQLite database."""
