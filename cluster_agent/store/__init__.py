"""What must outlive the cluster agent: a log of commits, and the SQLite database that is made from it."""
