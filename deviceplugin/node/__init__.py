"""The core of the daemon, in the order in which facts travel, from the machine to the API server.

`host` is what the machine says: cgroups, folders, the driver. `accounting` feeds the ledger from the
kubelet's book and from the API server. `limiting` has the driver hold every container to what it was given,
`measuring` says what each really uses, `telling` what the Node, its pods and people are shown. `notices` are
the Node's Events.
"""
