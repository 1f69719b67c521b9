"""The extender's HTTP: verbs, wire format, TLS, metrics."""
