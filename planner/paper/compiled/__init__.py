"""Compiled programs on the paper GPU: Dynamo, AOTAutograd and Inductor compile as for a GPU, and no kernel runs.

It never decides what is compiled, never times anything, and never runs a program eagerly in place of a compiled one.
`tracing` switches it on for jobs with `train.compile`, and for programs that compile.
"""

from planner.paper.compiled.switch import Compiling, enable

__all__ = ["Compiling", "enable"]
