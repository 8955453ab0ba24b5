"""`python -m planner.metrics` prints the table of docs/metrics.md."""

from planner.metrics.exposition import table

print(table(), end="")
