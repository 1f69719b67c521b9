"""`gpupack usage`: GiB-hours of GPU memory by namespace, label or pod, promised and used.

From Prometheus (`prometheus`), or from what the dashboard's process samples (`sampling`); `report` adds up
and writes.
"""
