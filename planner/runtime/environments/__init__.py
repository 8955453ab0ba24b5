"""Which Python a job runs with, and how planner gets there: interpreters, environments of a torch, planner's own code.

It imports neither torch nor what needs it, knows no job, and installs nothing unless it is asked to. The command line,
running and the service call it.
"""
