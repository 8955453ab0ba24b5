"""Failures of memory explained: what failed, who held what, what would have helped, and whose memory it was.

It reads what a failed job left behind, messages and snapshots, and never guesses: a form that is not known is said to
be unknown. Called by `planner explain`, `planner replay` and the service; it imports neither torch nor Ray.
"""
