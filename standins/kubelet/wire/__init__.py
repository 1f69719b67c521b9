"""Messages of the PodResources service, generated from its .proto file."""
