"""Jobs that can run in several ways: their configurations, RMAP's model, and the scheduler that chooses."""
