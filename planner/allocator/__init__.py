"""An exact model of PyTorch's CUDA caching allocator: which block every allocation gets, and what is reserved for it.

It never touches a GPU, imports neither torch nor ray, and keeps no clock: the same events and rules give the
same timeline. The plan calls it with predicted events, `planner replay` with the events of a recorded snapshot.
"""
