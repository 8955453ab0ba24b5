"""Measuring: starts the program of a job, or any program as it is, on a real device, and says what each rank took.

The program needs torch (PyYAML and transformers where the job does), never Ray or pydantic, and never the paper GPU; it
is recorded inside of its own processes (`rank_recorder`, `job_rank`), of which this one reads what they leave.
The command line, `planning` for `planner gpu-truth`, `validation`, the campaign in `benchmarks/gpu_truth` and the tests
call it.
"""
