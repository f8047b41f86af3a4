"""Jobs that really run: the scheduler's engine over nodes that are there, with a record that outlives the agent."""
