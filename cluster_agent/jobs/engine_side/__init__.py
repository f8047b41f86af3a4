"""What the engine sees of a live partition: rows of jobs and of nodes that are away, how runs end, who may start."""
