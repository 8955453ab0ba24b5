"""The trace of a job spec: planner's own training step on the paper GPU."""
