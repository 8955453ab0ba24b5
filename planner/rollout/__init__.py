"""The memory of an inference engine that shares a GPU with a trainer: its KV cache, its share, what sleep gives back.

It never traces or imports torch: it takes what was traced of the engine's forward and counts. Called by tracing (what a
token of the KV cache takes) and planning (the sums of phases, the largest share).
"""
