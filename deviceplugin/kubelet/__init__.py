"""The kubelet's side: the device plugin service, registration, and what the kubelet writes down."""
