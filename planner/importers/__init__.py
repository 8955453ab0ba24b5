"""Imports job specs from TrainingArguments, accelerate's and DeepSpeed's configs, and launch lines.

It never imports torch, transformers or accelerate, starts a shell, or reads a file outside of the folder of the one
that names it; what it does not understand it refuses by name. Called by `planner spec --from-...`.
"""
