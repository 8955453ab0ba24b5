"""Wraps: one file per parallelism, each turns a model into one that talks to its peers.

A wrap never starts a process group and never decides a degree: the caller has done the one, the spec says the other.
`step` calls them, in the order in which they nest.
"""
