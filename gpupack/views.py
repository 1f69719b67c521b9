"""Compare all that is said of a card: kubelet, ledger, packed words, extender, containers' environment."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from allocator.ids import parse_device_id
from allocator.packing import read_node
from gpupack.embedded import EmbeddedCluster, EmbeddedNode


@dataclass(frozen=True, slots=True)
class Views:
    """Units used by card of one node in word order, by who says so; equal when all is well."""

    node: str
    sizes: tuple[int, ...]
    said: dict[str, tuple[int, ...]]
    assumed: tuple[int, ...]

    def faults(self) -> list[str]:
        """Tell what is wrong: a card with more than it has, views that differ, units still assumed."""
        faults = [
            f"{self.node}: {who} says {units} of {self.sizes}: a card is over-committed"
            for who, units in self.said.items()
            if any(used > size for used, size in zip(units, self.sizes, strict=True))
        ]
        if len(set(self.said.values())) > 1:
            faults.append(f"{self.node}: views differ: {self.said}")
        if any(self.assumed):
            faults.append(f"{self.node}: the extender still assumes {self.assumed}")
        return faults


def views(cluster: EmbeddedCluster, node: EmbeddedNode) -> Views:
    """Ask everybody about one node."""
    account = node.daemon.account
    cards = account.ledger.cards() if account is not None else ()
    position = {card.uuid: index for index, card in enumerate(cards)}

    def by_card(units_of: dict[str, int]) -> tuple[int, ...]:
        return tuple(units_of.get(card.uuid, 0) for card in cards)

    words = read_node(cluster.api.node(node.name)["status"]["allocatable"])
    row = cluster.state.nodes.rows[node.name]
    count = len(position)
    said = {
        "kubelet": by_card(_counted(_held(node, cluster.resource))),
        "ledger": by_card(account.ledger.promised()) if account is not None else (),
        "words": words.used if words is not None else (),
        "extender": tuple(int(units) for units in cluster.state.nodes.used[row][:count]),
    }
    assumed = tuple(int(units) for units in cluster.state.nodes.assumed[row][:count])
    return Views(node.name, tuple(card.size_units for card in cards), said, assumed)


def _held(node: EmbeddedNode, resource: str) -> set[str]:
    """IDs that the kubelet's device manager says running pods hold, ordinary init containers' too."""
    running = node.kubelet.running_pods()
    return {
        text
        for uid, container in node.kubelet.containers
        if uid in running
        for text in node.kubelet.held(uid, container).get(resource, ())
    }


def _counted(ids: Iterable[str]) -> dict[str, int]:
    """Count device IDs by card."""
    return Counter(parse_device_id(text)[0] for text in ids)


def environment_faults(node: EmbeddedNode, resource: str) -> list[str]:
    """Compare each running container's environment with the device IDs that the kubelet gave it."""
    faults = []
    for record in node.kubelet.containers.values():
        if not record.running or resource not in record.devices:
            continue
        given = _counted(record.devices[resource])
        visible = set(record.envs.get("NVIDIA_VISIBLE_DEVICES", "").split(","))
        if visible != set(given):
            faults.append(f"{record.pod}/{record.name} on {node.name} sees {visible}, was given {given}")
    return faults


def faults(cluster: EmbeddedCluster) -> list[str]:
    """Everything that is wrong now; empty when all views agree and nothing is over-committed."""
    return [
        fault
        for node in cluster.nodes.values()
        for fault in (*views(cluster, node).faults(), *environment_faults(node, cluster.resource))
    ]
