"""The training programs that specs are: ordinary scripts, run on paper by plans and on GPUs by `torchrun`."""
