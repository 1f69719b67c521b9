"""Each rule that several places share taken out, one at a time: in some scene answers must differ then."""

from allocator import claims as claim_objects
from allocator import podcards
from gpupack.dashboard import records
from gpupack.inventory import pod_cards
from gpupack.whatif import cluster, live_cluster, node_results, snapshot
from scheduler_plugin.cache import charges, published_nodes
from scheduler_plugin.cache import pod_cards as freed
from scheduler_plugin.scheduling import filtering, node_fit
from tests.property.kernel.mutant import Mutant

from .checks import ask_everybody

MUTANTS = tuple(
    Mutant(name, function, code, instead, ask_everybody)
    for name, function, code, instead in (
        (
            "shares in percent count in units of the card as it is now",
            podcards.charged_units,
            "sizes_of = dict(zip(uuids, sizes, strict=False)) if request.percent else {}",
            "sizes_of = {}",
        ),
        (
            "a card that has gone counts for nobody",
            podcards.assigned_units,
            "return {position_of[uuid]: units for uuid, units in costs.items() if uuid in position_of}",
            "return {position_of.get(uuid, 0): units for uuid, units in costs.items()}",
        ),
        (
            "a pod is where it is charged until the words have it",
            podcards.unheld_units,
            "return published_units(due, sizes)",
            "pass",
        ),
        (
            "a card that has lost its units counts for nobody",
            podcards.published_units,
            "if card < len(sizes) and sizes[card]}",
            "}",
        ),
        (
            "a pod that was just bound counts in filter",
            charges.ChargeRules.charges_of_bound,
            "if pod.charged is not None and (not self.is_confirmed(record, uid)):",
            "if False:",
        ),
        (
            "a pod that was just bound counts in top",
            pod_cards.join_pods,
            "_RULES.sum_by_card(node, charges)",
            "([0] * len(cards), [0] * len(cards))",
        ),
        (
            "a pod that was just bound counts in the dashboard",
            records._make_card_tile,
            "free = card.free_units if",
            "free = max(0, card.size_units - card.used_units) if",
        ),
        (
            "a claim counts from its allocation",
            charges.ChargeRules.charges_of_claims,
            "yield from record.claims.values()",
            "yield from ()",
        ),
        (
            "what the words contain of a claim counts once",
            charges.NodeRecord.find_missing,
            "self.held_claims.get(claim.uid, {})",
            "{}",
        ),
        (
            "a claim that was just allocated counts in top",
            pod_cards.join_pods,
            "claims={claim.uid: claim for claim in claims}",
            "claims={}",
        ),
        (
            "a claim that was just allocated counts in the dashboard",
            live_cluster.LiveCluster.list_node_objects,
            "claims = list(self._claims_on_node.get(name, {}).values())",
            "claims = []",
        ),
        (
            "a claim that was just allocated counts in why, fit and advise",
            cluster.Cluster.__post_init__,
            "self.state.claims.replace(list(self.claims.values()), '', 0.0)",
            "pass",
        ),
        (
            "a claim that the extender wrote counts by its pod",
            claim_objects.ClaimObject.is_for_limits,
            "return bool(uid and results) and",
            "return False and",
        ),
        (
            "a claim that only looks as if the extender had written it counts",
            claim_objects.ClaimObject.is_for_limits,
            "result.share_id == result.make_share_id(uid)",
            "(self.metadata.labels or {}).get('gpupack.io/pod-claim') == 'true'",
        ),
        (
            "a pod with claims is in the simulator with what it has",
            snapshot._read_claims,
            "if units else []",
            "if False else []",
        ),
        (
            "the taint of a cordon counts without the cordon",
            node_fit.find_node_rejection,
            "for taint in taints if not tolerates(taint)]",
            "for taint in taints if taint != UNSCHEDULABLE and not tolerates(taint)]",
        ),
        (
            "a cordon counts before its taint is there",
            node_fit.find_node_rejection,
            "if node.unschedulable and (not tolerates(UNSCHEDULABLE)):",
            "if node.unschedulable and UNSCHEDULABLE in node.taints and (not tolerates(UNSCHEDULABLE)):",
        ),
        (
            "a cordon of cards counts before the words say so",
            published_nodes.read_annotations,
            "if not card.healthy or card.uuid in cordoned",
            "if not card.healthy",
        ),
        (
            "of a full card all that pods have counts",
            published_nodes._count_overuse,
            "used[card] = max(used[card], min(units_held, _MAX_ACCOUNTED))",
            "pass",
        ),
        (
            "nothing is free for certain of a card that others fill",
            freed._filled_by_others,
            "if used >= size > of_pods}",
            "if False}",
        ),
        (
            "pods on unhealthy cards count in a node's sum",
            charges.NodeRecord.count_requests,
            "self.requested.add(pod.amounts, times)",
            "self.requested.add(pod.amounts.without_sums(), times)",
        ),
        (
            "a node without shares of cards says so",
            filtering.explain_rejections,
            "codes[nodes.usable[rows] & ~nodes.percent[rows]] = FilterReason.NO_PLUGIN",
            "pass",
        ),
        (
            "why says what filter says",
            node_results.collect_node_results,
            "codes = explain_rejections(nodes, query, out)",
            "codes = explain_rejections(nodes, query, out) * 0 + FilterReason.NOT_FREE",
        ),
    )
)
