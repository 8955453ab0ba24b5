"""Plans a job: traces each rank class, and judges what it takes.

It knows the whole chain and nothing of who asks: it starts no service, stores nothing and prints nothing. The command
line, the search, the service, validation and the Python API call it.
"""
