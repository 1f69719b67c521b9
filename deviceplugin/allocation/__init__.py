"""Answers to the kubelet: the ledger, and what feeds it from the checkpoint, the API server and the cards."""
