"""What is true beside what was predicted: measuring, comparing, calibration, and failures explained."""
