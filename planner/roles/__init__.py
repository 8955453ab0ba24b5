"""What the memory of a training is for: parameters, gradients, buckets, optimizer state, communication.

Found by global hooks and by wrapped functions of torch and DeepSpeed, in anybody's program; it changes nothing of what
a program computes. `tracing` calls it with the paper GPU's recorder, `truth/measuring` with those of real devices.
"""
