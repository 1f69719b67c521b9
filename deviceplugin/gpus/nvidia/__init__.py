"""NVIDIA: cards, events and memory limits through NVML, MIG, and CUDA's Multi-Process Service."""
