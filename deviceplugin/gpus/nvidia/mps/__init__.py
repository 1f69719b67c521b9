"""CUDA's Multi-Process Service (MPS): one control daemon a card, which limits memory and compute.

Version 2 limits each process, for drivers that cannot limit a container's memory themselves. Version 3 limits
a container's processes together, beside the driver (`namespaces`). `gpupack mps` runs and watches the control
daemons (`supervisor`, `control`, `namespace_control`). The command and the node daemon meet in a folder of
the host (`folder`), so either can end and start without the other. `grants` says what a container is given.
"""
