"""The scheduler extender over HTTP: verbs, protocol, servers, and retries of refused pods."""
