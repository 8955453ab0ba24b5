"""What the memory of a training is for: parameters, gradients, buckets, optimizer state, communication.

Found by global hooks and by wrapped functions of torch and DeepSpeed, in anybody's program; it changes nothing that a
program computes or allocates. `tracing` calls it with the paper GPU's recorder, `truth/measuring` with those of real
devices.
"""
