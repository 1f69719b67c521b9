"""The core of the daemon: the accounts, the API server's view of the node, what is published."""
