"""The folder that `planner measure -- COMMAND` puts on PYTHONPATH, so that Python runs its `sitecustomize` first.

It holds nothing else, imports neither torch nor planner, and never stops a program: it may run in another environment.
`planner.truth.measuring.program` names it to the command that it starts; Python's own `site` calls it.
"""
