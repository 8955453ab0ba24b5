"""Long runs from short traces: cuts traced steps apart, and replays thousands of steps that are made of them.

It never traces, draws or judges, and imports neither torch nor ray: a step that nobody traced follows from those that
were, or is said not to. `planner.planning` calls it for jobs whose batches differ, `planner.tracing` for what grows.
"""
