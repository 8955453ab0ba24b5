"""Comparing: what was predicted beside what was measured, by phase, by category and allocation by allocation.

It only compares: it never predicts, measures or corrects, and needs neither torch nor Ray.
The command line, `make accuracy` and `validation` call it.
"""
