"""Measuring: the step that planner predicts, on a real device in this process, or a program as it is, and what it took.

It needs torch (PyYAML and transformers where the job does), never Ray or pydantic, and never the paper GPU in a process
that measures.
The command line, `planning` for `planner gpu-truth`, `validation`, the campaign in `benchmarks/gpu_truth` and the tests
call it.
"""
