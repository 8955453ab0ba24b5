"""The endpoints, one file per subject: each reads a request, calls one function below, and answers.

Never holds state, blocks the event loop, or computes a figure of its own.
Called by planner.service.interface, which puts them together.
"""
