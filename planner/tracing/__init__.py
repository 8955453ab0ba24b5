"""Traces one rank's training step on the paper GPU, from a job to its events.

It never replays, judges or stores anything. `planner.planning` asks it for a trace; a job whose model comes from a
factory is traced in a process of its own, with limits of time and memory.
"""
