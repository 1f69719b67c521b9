"""The commands of the console, a module each; gpupack/cli.py puts them together.

Every command imports what it runs when it runs: the node daemon must not pay for the scheduler's numpy.
"""
