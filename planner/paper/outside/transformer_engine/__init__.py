"""The functions of TransformerEngine's extension `transformer_engine_torch`, which allocate what its host code does.

It computes nothing, refuses by name what is not modelled (fp8, packed sequences, overlapped communication), and has
none of the package's Python code, which runs as it is installed. `planner.running.outside` puts it in the extension's
place.
"""
