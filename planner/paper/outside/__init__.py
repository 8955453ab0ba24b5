"""Kernels of other packages than torch: operators that allocate on the paper GPU what theirs allocate.

It computes nothing, imports none of the packages that it stands for, and decides nothing about when one stands for
another. `planner.tracing.program.packages` puts them where a program looks for the packages.
"""
