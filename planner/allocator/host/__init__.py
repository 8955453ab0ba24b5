"""What a job holds at least in the host's memory: blocks of each rank by phase, summed over the ranks of each node.

It computes from events alone: it never looks at a machine, imports torch or guesses what it was not told.
Called by planning and the reports.
"""
