"""The training step: builds model, wraps, optimizer and loop for a job, on the device that it is given.

It never asks what kind of device that is and never reads the value of a device tensor on the host.
`planning`, `measuring` and the tests call `step.run`.
"""
