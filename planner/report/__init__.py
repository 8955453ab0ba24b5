"""From events and their timeline to a statement about memory, and from statements to what people and programs read.

Never runs a model, never reads a clock, never decides what an allocator does: it attributes, sums, and shows.
Called by planning, answer, cli, the service and the comparison.
"""
