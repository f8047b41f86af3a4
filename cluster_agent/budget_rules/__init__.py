"""What the rules and schedules of a site make of its budget, and of the limits of groups, over the day."""
