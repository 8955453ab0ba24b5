"""Which ranks a job has, where each stands on the device mesh, and which of them do the same thing.

It never builds a process group and never walks over all ranks: what it costs does not grow with the world.
Planning calls it to know which ranks to trace; reports and hooks take its rank sets.
"""
