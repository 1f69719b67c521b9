"""`gpupack migrate`: manifests that ask for GPUs as HAMi, gpushare or NVIDIA's plugin read them, for gpupack.

`documents` finds the pods in manifests, `pods` rewrites a pod, `requests` reads what a container asks for.
`yamltext` reads and writes YAML without changing what it does not understand. Nothing here does I/O.
"""
