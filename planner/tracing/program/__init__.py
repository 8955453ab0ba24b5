"""Runs an unedited training program on the paper GPU, as one rank of a world whose other ranks are absent.

It never replays, judges or stores anything, and never runs a program on a real device. `planner.planning` asks it for a
program's events: each rank is a child process with limits, in which values that nobody has are answered by a table.
"""
