"""`gpupack migrate`: manifests for other ways to share GPUs, for gpupack.

`documents` finds the pods in manifests, `pods` rewrites a pod, `requests` reads what a container asks for.
`yamltext` reads and writes YAML without changing what it does not understand. Nothing here does I/O.
"""
