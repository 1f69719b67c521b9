"""`gpupack migrate`: manifests that ask for GPUs as HAMi, gpushare or NVIDIA's plugin read them, for gpupack.

`yamltext` reads and writes YAML without changing what it does not understand, `requests` reads what one
container asks for, `pods` rewrites one pod, `documents` finds the pods in manifests. Nothing here does I/O.
"""
