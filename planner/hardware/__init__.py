"""What is known of GPUs: one record for each GPU that a job can name, and one for each architecture.

It holds facts with their sources and finds them by name; it never computes a figure and never looks at a device.
Called by spec, paper, overhead, admission, validation and history.
"""
