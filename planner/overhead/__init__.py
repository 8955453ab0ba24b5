"""What a process holds outside the caching allocator, the CUDA context and NCCL, from a table of measured facts.

Never computes a figure that nobody measured without saying so, and never looks at a device of its own.
Called by planning; the calibration corrects what it says.
"""
