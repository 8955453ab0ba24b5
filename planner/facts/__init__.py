"""Facts that were measured on GPUs: what kernels of closed libraries take as workspaces, by shape, and observed steps.

It reads lines of JSON and answers from them, each answer with its provenance; it never guesses beyond two measured
neighbours, and never measures anything.
Called by paper, which counts the workspaces, by planning, which learns the usual calibration, and by `gpu-truth`.
"""
