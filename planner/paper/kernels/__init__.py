"""Kernels of the paper GPU that allocate otherwise than their meta kernels say: CUDA's own temporaries and choices.

Each file holds one family; it allocates what the CUDA kernel allocates, with the upstream file as its source, and
never computes. `planner.paper.device` installs them once and says whose kernels (which target) are in force.
"""
