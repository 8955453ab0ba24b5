"""What commands end with: those that the commands promise, and those that shells know."""

DONE, OUR_FAULT, WRONG_INPUT, EXCEEDS = 0, 1, 2, 3
INTERRUPTED, PIPE_CLOSED = 128 + 2, 128 + 13
"""As shells report a process that SIGINT or SIGPIPE ended."""
