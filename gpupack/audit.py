"""Compare everything known about a card: kubelet, ledger, packed words, extender, containers' environment."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from allocator.errors import PackingError
from allocator.ids import parse_device_id
from allocator.packing import NodeWords, read_node
from gpupack.embedded import EmbeddedCluster, EmbeddedNode
from standins.kubelet.runtime import ContainerRecord


@dataclass(frozen=True, slots=True)
class CardViews:
    """Each view's units of one node's cards, by card in word order.

    Attributes:
        sizes: by source; equal when all is well. `cards` are the real ones.
        used: by source; equal when all is well, and never above the sizes.
        assumed: what the extender counts besides; all 0 once every event has arrived.
    """

    node: str
    sizes: Mapping[str, tuple[int, ...]]
    used: Mapping[str, tuple[int, ...]]
    assumed: tuple[int, ...]

    def list_over_committed(self) -> list[str]:
        """Tell of every card that holds more than it has, by anybody's account."""
        sizes = self.sizes["cards"]
        return [
            f"{self.node}: card {index} is over-committed: {who} says {units} of {size} units"
            for who, said in self.used.items()
            for index, (units, size) in enumerate(zip(said, sizes, strict=False))
            if units > size
        ]

    def list_differences(self) -> list[str]:
        """Tell where views differ, and of units that the extender still assumes."""
        differences = [
            f"{self.node}: views of the {what} differ: "
            + ", ".join(f"{who} {list(units)}" for who, units in said.items())
            for what, said in (("sizes", self.sizes), ("units used", self.used))
            if len(set(said.values())) > 1
        ]
        if any(self.assumed):
            differences.append(f"{self.node}: the extender still assumes {list(self.assumed)}")
        return differences


def collect_views(cluster: EmbeddedCluster, node: EmbeddedNode) -> CardViews:
    """Read all sources about one node; a source that knows nothing has an empty view."""
    account = node.daemon.account
    cards = account.ledger.cards() if account is not None else ()

    def by_card(units_of: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(units_of.get(card.uuid, 0) for card in cards)

    words = _words(cluster, node.name)
    arrays = cluster.state.nodes
    row = arrays.rows.get(node.name, 0)
    count = int(arrays.cards[row]) if node.name in arrays.rows else 0
    return CardViews(
        node.name,
        sizes={
            "cards": tuple(card.size_units for card in cards),
            "words": words.sizes if words is not None else (),
            "extender": tuple(int(units) for units in arrays.size[row][:count]),
        },
        used={
            "kubelet": by_card(_counted(_list_held_ids(node, cluster.resource))),
            "ledger": by_card(account.ledger.allocated_units()) if account is not None else (),
            "words": words.used if words is not None else (),
            "extender": tuple(int(units) for units in arrays.used[row][:count]),
        },
        assumed=tuple(int(units) for units in arrays.assumed[row][:count]),
    )


def _words(cluster: EmbeddedCluster, node: str) -> NodeWords | None:
    try:
        return read_node(cluster.api.node(node)["status"]["allocatable"])
    except PackingError:
        return None


def _list_held_ids(node: EmbeddedNode, resource: str) -> set[str]:
    """List the device IDs that the kubelet says running pods hold, those of ordinary init containers too."""
    running = node.kubelet.running_pods()
    return {
        text
        for uid, container in node.kubelet.containers
        if uid in running
        for text in node.kubelet.held(uid, container).get(resource, ())
    }


def _counted(ids: Iterable[str]) -> dict[str, int]:
    return Counter(parse_device_id(text)[0] for text in ids)


def list_pod_units(cluster: EmbeddedCluster, node: EmbeddedNode, uid: str) -> dict[int, int]:
    """Read the units that a pod's running containers got from the kubelet, by position of the card."""
    account = node.daemon.account
    cards = account.ledger.cards() if account is not None else ()
    position = {card.uuid: number for number, card in enumerate(cards)}
    given = Counter(
        parse_device_id(text)[0]
        for (pod, _), record in node.kubelet.containers.items()
        if pod == uid and record.running
        for text in record.devices.get(cluster.resource, ())
    )
    return {position[uuid]: units for uuid, units in given.items()}


def find_environment_faults(
    node: str, records: Iterable[ContainerRecord], resource: str, unit_mib: int
) -> list[str]:
    """Compare each running container's environment with the device IDs that the kubelet gave it."""
    faults = []
    for record in records:
        if not record.running or resource not in record.devices:
            continue
        given = _counted(record.devices[resource])
        visible = record.envs.get("NVIDIA_VISIBLE_DEVICES", "")
        promised = record.envs.get("GPUPACK_CARDS", "")
        mib = record.envs.get("GPUPACK_MEMORY_MIB", "")
        cards = {f"{uuid}:{units}" for uuid, units in given.items()}
        a_card = str(min(given.values()) * unit_mib)
        if (set(visible.split(",")), set(promised.split(",")), mib) != (set(given), cards, a_card):
            faults.append(
                f"{record.pod}/{record.name} on {node} sees {visible!r} and was promised {promised!r}, "
                f"{mib or 'no'} MiB a card: the kubelet gave it {sorted(cards)}, {a_card} MiB a card"
            )
    return faults


def find_over_committed(cluster: EmbeddedCluster) -> list[str]:
    """Find cards that hold more than they have, which must never be, not even between two events."""
    return [
        fault
        for node in cluster.nodes.values()
        for fault in collect_views(cluster, node).list_over_committed()
    ]


def find_faults(cluster: EmbeddedCluster) -> list[str]:
    """Find what is wrong now; empty when all views agree and nothing is over-committed."""
    return [
        fault
        for node in cluster.nodes.values()
        for seen in (collect_views(cluster, node),)
        for fault in (
            *seen.list_over_committed(),
            *seen.list_differences(),
            *find_environment_faults(
                node.name, node.kubelet.containers.values(), cluster.resource, cluster.unit_mib
            ),
        )
    ]
