"""What a job holds in the host's memory: blocks of each rank by phase, summed over the ranks of each node.

It computes from events and tables alone: it never looks at a machine, imports torch or guesses a rank.
Called by planning and the reports.
"""
