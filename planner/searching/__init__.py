"""Searches over jobs: which layouts and settings fit, the largest size, the fewest GPUs, and advice.

It never traces, replays or judges by itself: a bound that is never too high leaves candidates out, an estimate of
their time ranks them, and plans of `planner.planning` decide what is shown. The command line and the service call it.
"""
