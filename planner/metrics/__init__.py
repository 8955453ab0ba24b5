"""Metrics: what planner tells Prometheus of itself and of the jobs that it knows.

One table defines every metric; the exposition reads all of them from the shared history, so that every replica gives
the same answer. It measures nothing itself; the service serves it and counts by its names.
"""
