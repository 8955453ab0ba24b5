"""Runs a function in a child process, under limits and, for code of users, behind walls.

It never knows what the function does. Planning, tracing, the service and validation call it; it imports the standard
library only, so that it runs in a training image.
"""
