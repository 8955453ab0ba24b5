"""What measurements have taught about predictions: corrections, and the interval in which device bytes lie.

Never measures and never reads a store: a calibration is a value that is handed in.
Called by planning and the validation.
"""
