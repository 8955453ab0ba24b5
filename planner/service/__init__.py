"""Serves plans, checks, jobs and measurements over HTTP, as an application of Ray Serve.

Never decides anything of memory: it checks who asks and what, hands the work to the packages below, stores and answers.
Called by `planner serve` and by `serve deploy`.
"""
