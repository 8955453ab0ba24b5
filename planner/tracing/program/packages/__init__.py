"""What a program finds where it looks for packages whose kernels cannot run here, and what its report says of them.

It never installs anything and never replaces Python code that is installed, only what such code would launch. A
program's run enters `libraries.found_packages`; what kernels allocate is known in `planner.paper.outside`.
"""
