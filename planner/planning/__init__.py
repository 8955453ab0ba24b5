"""Plans a job: traces each rank class, judges what it takes, advises where it does not fit.

It knows the whole chain and nothing of who asks: it starts no service, stores nothing and prints nothing. The command
line, the service, validation and the Python API call it.
"""
