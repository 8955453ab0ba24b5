"""Reads the command behind `planner run --`: which program it starts, as how many ranks, with which environment.

Nothing is run: wrappers, schedulers and frameworks are read by their options, shell scripts are followed statement by
statement. What only the job's machines know stays marked in the words, and is refused where the launch line needs it.
"""
