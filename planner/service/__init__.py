"""Plans, checks, jobs and measurements over HTTP, for many users at once, as an application of Ray Serve.

Never decides anything of memory: it checks who asks and what, hands the work to the rooms below, stores and answers.
Called by `planner serve` and by `serve deploy`.
"""
