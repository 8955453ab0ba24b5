"""How long a step takes: every kernel of a traced iteration is priced on a GPU, and its streams are replayed.

It computes from traces and from what planner.hardware knows of GPUs; it never traces, and imports neither torch nor
Ray. Called by planning and searching.
"""
