"""CUDA's Multi-Process Service (MPS): one control daemon a card, which limits each process' memory.

For drivers that cannot limit a container's memory themselves. `gpupack mps` runs and watches the control
daemons (`supervisor`, `control`). The command and the node daemon meet in a folder of the host (`folder`), so
either can end and start without the other. `grants` says what a container is given.
"""
