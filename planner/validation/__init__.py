"""Validation: the step of a job on the cluster's GPUs, or on its CPUs, and its plan beside what was measured.

It never measures in its own process and never answers a request; what it learns it says, and others store it.
The service's deployment for validations and `python -m planner.validation.here` call it.
"""
