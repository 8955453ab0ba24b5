"""Validation: runs a job's step on the cluster's GPUs or CPUs and compares it with the plan.

It never measures in its own process and never answers a request; what it learns it says, and others store it.
The service's deployment for validations and `planner validate` call it.
"""
