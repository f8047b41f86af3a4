"""Commands about what has been learned from jobs: predictions of power, and the history that they rest on."""
