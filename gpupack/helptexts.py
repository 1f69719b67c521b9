"""Texts of the commands' `--help`; options and policies are listed below them."""

from typing import Final

# The character after each blank line tells click to keep the lines of a paragraph as they are.
NODE_HELP: Final = """Run the daemon of one node: cards, device plugin, packed words.

\b
With real cards, as in the DaemonSet:
  gpupack node --node-name "$NODE_NAME"
With simulated ones:
  gpupack node --node-name n1 --gpus simulated --profile 8xh100-80

/readyz answers 200 once the kubelet knows the devices and a patch of the Node's status went through, and
503 with the reason before that, while patches have failed for a minute, no Node has the name, another
daemon serves this node, the kubelet's checkpoint cannot be read, or PodResources does not answer.

Shipped profiles: 8xa100-40, 8xh100-80, 8xh200, 4xl40s, 2xt4, mixed. Card policies are listed below.
"""
SCHEDULER_HELP: Final = """Run the scheduler extender.

It serves /filter /prioritize /bind /preempt to kube-scheduler, and /healthz /readyz /metrics; with
--metrics-http these three also on a listener of their own, for probes and Prometheus.

\b
Beside a kube-scheduler whose configuration names http://127.0.0.1:8910:
  gpupack scheduler
Behind a Service, for a kube-scheduler that is not ours:
  gpupack scheduler --http :8910 --leader-elect \\
    --tls-cert-file tls.crt --tls-key-file tls.key --tls-client-ca-file ca.crt

kube-scheduler must run with percentageOfNodesToScore: 100. See docs/install/joining.md.

Policies are listed below; a pod's annotations may name others than the cluster's. See docs/policies.
"""
SIMULATE_HELP: Final = """Run node policies over a trace of nodes and pods.

Pods are drawn from the list until the GPUs asked for reach --inflation times the cluster's, shuffled and
placed one by one with the very policy code of the extender. Prints the GPUs allocated, why pods found no
place, and how the rest is fragmented. With --replay pods come and end at the trace's own times instead;
with --queues FILE they go through the queues of `gpupack queue`.

\b
Two policies, ten draws, curves:
  gpupack simulate --nodes nodes.csv --pods pods.csv --policy fragmentation,best-fit --seeds 42-51 --plot out
For scripts:
  gpupack simulate --nodes nodes.csv --pods pods.csv --json -
Pods that come and end, and how long they wait:
  gpupack simulate --nodes nodes.csv --pods pods.csv --policy fragmentation,best-fit --replay --load 0.8
Your own cluster, with two more nodes, and with units of 2 GiB:
  gpupack simulate --cluster --policy fragmentation,best-fit --add 8xh100-80x2 --unit-mib 2048

Policies are listed below. See docs/policies and docs/ask.md.
"""
TOP_HELP: Final = """Show every card of the cluster, or of the nodes named: used and whole size, in units.

\b
As a kubectl plugin:          kubectl gpupack top
One node, as it changes:      kubectl gpupack top NODE -w
The pods on every card:       kubectl gpupack top --pods
One line a card, with UUIDs and what it does:  gpupack top -o wide
From a file, or a pipe:       kubectl get nodes -o json | gpupack top -f -
For scripts:                  gpupack top -o json

STATUS is kubectl's, with NoPlugin where the kubelet has no device plugin of gpupack's. Cards of such nodes,
of nodes that are NotReady or cordoned, and cards marked ! (unhealthy) or * (cordoned) are left out of the
sums. A marked card shows what its pods hold.
"""
DASHBOARD_HELP: Final = """Show every card of the cluster on one page in a browser, live.

\b
As a kubectl plugin:          kubectl gpupack dashboard
Another context and port:     gpupack dashboard --context NAME --port 9000
From a file, or a pipe:       kubectl get nodes,pods -A -o json | gpupack dashboard -f -
In the cluster:               manifests/components/dashboard, docs/dashboard.md

It needs the right to list and watch nodes and pods, and changes nothing. What cards do is read from the node
daemons, which takes the right to get pods/proxy. The page loads nothing from elsewhere. It is served to this
machine only, unless --http names another address.
"""
USAGE_HELP: Final = """Add up GiB-hours of GPU memory by namespace, label or pod, promised and used.

\b
From Prometheus:              gpupack usage --prometheus http://127.0.0.1:9090 --since 7d
From a running dashboard:     gpupack usage --since 1h --by pod
As CSV, by a label:           gpupack usage --by label:team -o csv

Without --prometheus the dashboard at --dashboard is asked, which samples while it runs.
Times are 30m, 24h, 7d, 2026-11-01 or 2026-11-01T08:00:00Z.
"""
VERIFY_HELP: Final = """Show in this cluster that cards are shared, and leave nothing behind.

\b
As a kubectl plugin:                 kubectl gpupack verify
On one node, the daemon restarted:   kubectl gpupack verify --node NODE --restart-daemon
For scripts, or to send:             gpupack verify -o json

It creates a namespace and three pods in it. Two pods share a card, one that fits no card waits with the
reason, a wrong one is refused. Where CUDA works, a container uses its card, and more than its share is
refused or measured. An Event and a metric arrive, and what the pods had is free again. The namespace is
removed at the end, after a failure, and after Ctrl-C, SIGTERM or a closed terminal.

No other pod is touched, no card is cordoned, and no autoscaler adds a node. What could not be tried is
unproven, with the reason. Exit status 1: something is not as promised, or two pods could not share a card.
The rights that it needs: docs/howto/verify.md.
"""
COMPLETION_HELP: Final = """Print a script that completes gpupack's commands and options.

\b
bash: gpupack completion bash > ~/.local/share/bash-completion/completions/gpupack
zsh:  gpupack completion zsh > "${fpath[1]}/_gpupack"
fish: gpupack completion fish > ~/.config/fish/completions/gpupack.fish

`kubectl gpupack` is completed by kubectl's own script, which calls kubectl_complete-gpupack.
"""
