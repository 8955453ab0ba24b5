"""TransformerEngine's compiled part, of which there is no wheel: operators that allocate what its own allocate.

It computes nothing, never stands for a compiled part that is installed, and knows nothing of the package's Python code.
The entry point `transformer_engine_torch` of the group `planner.kernels` names it, as other packages' may name theirs.
"""
