"""What a job is: values with every default filled in, read strictly from YAML or a bundle.

It never touches a GPU, the network, torch or transformers, so whether an optimizer or an architecture exists is
decided elsewhere. The command line, the service, the hooks and planning read jobs through it; other packages take the
values.
"""
