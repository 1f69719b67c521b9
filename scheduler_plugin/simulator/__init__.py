"""Runs node and card policies over a trace of nodes and pods: the same policy code as the extender's."""
