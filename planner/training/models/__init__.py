"""Builds models: from the job's `model` to an `nn.Module` on a device.

It never fetches weights, never touches the network, and never runs code that a config names.
`step` calls `build.build`.
"""
