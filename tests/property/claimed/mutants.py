"""Each rule of claims taken out, one at a time: some history must break that passes with the rule."""

from allocator import claims as claim_objects
from allocator.ledger import charges as ledger_charges
from deviceplugin.allocation import own_pods
from deviceplugin.dra import claim_service, prepared_claims
from scheduler_plugin.cache import charges, claim_charges, claims
from tests.property.kernel.mutant import Mutant

from .history import run

STEPS = 400


def troubled(seed: int) -> None:
    """One history in which much goes wrong."""
    run(seed, STEPS, 1.0 + seed % 3)


def vanishing(seed: int) -> None:
    """One history in which claims vanish while nodes prepare them."""
    run(seed, STEPS, 1.0, 5.0)


MUTANTS = (
    Mutant(
        "extender: a claim counts from its allocation",
        charges.ChargeRules.charges_of_claims,
        "yield from record.claims.values()",
        "yield from ()",
        troubled,
    ),
    Mutant(
        "extender: what the words contain of a claim counts once",
        charges.NodeRecord.find_missing,
        "held_units, held_compute = held.get(card, (0, 0))",
        "held_units, held_compute = (0, held.get(card, (0, 0))[1])",
        troubled,
    ),
    Mutant(
        "extender: words that contain what a claim had before do not contain what it has now",
        charges.NodeRecord.find_missing,
        "if units > held_units or compute > held_compute:",
        "if not held:",
        troubled,
    ),
    Mutant(
        "extender: the compute of a claim counts from its allocation",
        charges.ChargeRules.sum_by_card,
        "for card, (units, percent) in record.find_missing(claim).items():",
        "for card, units, percent in [(at, had, 0) for at, (had, _) in record.find_missing(claim).items()]:",
        vanishing,
    ),
    Mutant(
        "extender: what the words contain of a claim's compute counts once",
        charges.NodeRecord.find_missing,
        "held_units, held_compute = held.get(card, (0, 0))",
        "held_units, held_compute = (held.get(card, (0, 0))[0], 0)",
        troubled,
    ),
    Mutant(
        "extender: a claim that vanished unheld leaves a tombstone",
        charges.ChargeRules.charges_of_claims,
        "for tombstone in record.claim_tombstones.values():",
        "for tombstone in ():",
        vanishing,
    ),
    Mutant(
        "extender: a tombstone of a claim stays until the words have seen its pods end",
        charges.ChargeRules.is_claim_over,
        "return all((record.seen_version >= end for end in tombstone.ends.values()))",
        "return True",
        vanishing,
    ),
    Mutant(
        "extender: a pod that has not ended keeps its claim's tombstone",
        claims.ClaimCache._vanish,
        "NOT_ENDED if end is None else end",
        "0 if end is None else end",
        vanishing,
    ),
    Mutant(
        "extender: a claim that it wrote for a pod is charged by that pod",
        claim_charges.read_claim,
        "() if claim.is_for_limits else claim.results or ()",
        "claim.results or ()",
        troubled,
    ),
    Mutant(
        "extender: a claim that only looks as if it had written it counts",
        claim_objects.ClaimObject.is_for_limits,
        "result.share_id == result.make_share_id(uid)",
        "(self.metadata.labels or {}).get('gpupack.io/pod-claim') == 'true'",
        troubled,
    ),
    Mutant(
        "node: a claim takes no more than the card has",
        claim_service.ClaimService._find_shortage,
        "if others + before + units > card.size_units:",
        "if False:",
        troubled,
    ),
    Mutant(
        "node: a claim takes no more than the card gives of its compute",
        claim_service.ClaimService._find_compute_shortage,
        "if others + before + percent > accounts.compute_limit:",
        "if False:",
        troubled,
    ),
    Mutant(
        "node: claims say which of a pod's cards has how much of its compute",
        ledger_charges.charge_pod_compute,
        "add(charge, claimed)",
        "pass",
        troubled,
    ),
    Mutant(
        "node: the compute of a claim is known before its pod is",
        ledger_charges.charge_pod_compute,
        "ids - account.claimed_ids for ids in account.charged_ids",
        "ids for ids in account.charged_ids",
        troubled,
    ),
    Mutant(
        "node: a claim is counted before its file is written",
        claim_service.ClaimService._prepare_new,
        "self._prepared.add(prepared)",
        "pass",
        troubled,
    ),
    Mutant(
        "node: a claim that is let go counts no more",
        claim_service.ClaimService.unprepare,
        "self._prepared.remove(uid)",
        "pass",
        troubled,
    ),
    Mutant(
        "node: a pod with other claims is accounted once that of its limits is prepared",
        prepared_claims.PreparedClaims.awaits_claim,
        "return bool(claims) and (not any((claim.is_for_limits for claim in claims)))",
        "return False",
        troubled,
    ),
    Mutant(
        "node: what a pod had by claims is known until it ends",
        own_pods.OwnPods.find_claims,
        "return self._read_claims(runtime_uid) or self._claims.get(runtime_uid)",
        "return self._read_claims(runtime_uid)",
        troubled,
    ),
)
