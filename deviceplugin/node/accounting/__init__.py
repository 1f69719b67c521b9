"""The account: the ledger, and what feeds it from the kubelet's book, the API server and the cards."""
