"""Jobs that really run: the scheduler's engine with real nodes, and a record of each job that outlives the agent."""
