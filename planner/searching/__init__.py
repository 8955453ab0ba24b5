"""Searches over jobs: which layouts and settings fit, the largest size, the fewest GPUs, every point, and advice.

Each is candidates, an order that says which of them is planned next, their exact plans, and a result. It never traces,
replays or judges by itself: a bound leaves candidates out, an estimate of their time ranks them, and plans of
`planner.planning` decide what is shown. The command line and the service call it.
"""
