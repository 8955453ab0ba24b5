"""Measuring: the very step that planner predicts, run on a real device in this process, and what it really took.

It needs torch (PyYAML and transformers where the job does), never Ray or pydantic, and never the paper GPU.
The command line, `make gpu-truth`, `validation` and the tests call it.
"""
