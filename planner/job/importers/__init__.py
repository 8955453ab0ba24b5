"""Imports jobs from the files and launch lines of other programs, from models' names and from words on a command line.

It never imports torch, transformers or accelerate, starts a shell, or reads a file outside of the folder of the one
that names it; what it does not understand it refuses by name. Called by the commands that
take a job.
"""
