"""The history: plans, traces, jobs, checks, validations and calibrations in one SQL database.

Never plans, measures or judges: it keeps what others found and answers questions about it, all of a change or nothing.
Called by the service, the validation's results on their way in, and the metrics.
"""
