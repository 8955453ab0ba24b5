"""The memory that a job takes at least: parameters, gradients and optimizer state by its layout, as arithmetic.

Never traces, imports torch or transformers, or counts what it does not know for sure: what it says is below every plan.
Called by the service and the hooks for jobs whose plan is not made yet, and by searches, which rank many jobs at once.
"""
