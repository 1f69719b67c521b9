"""The node daemon: GPU sources, the kubelet's device plugin API, the reconciler and the publisher."""
