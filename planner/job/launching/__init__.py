"""Reads the command behind `planner run --`: which program it starts, as how many ranks, with which environment.

Wrappers, schedulers and frameworks are read by their options; scripts are run by bash, with stand-ins of all that would
start a program (planner.runtime.scripts). What is not known here stays marked in the words, and is refused where the
launch line needs it.
"""
