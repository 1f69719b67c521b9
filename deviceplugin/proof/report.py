"""Report of the findings about a node's cards, for users and for developers of gpupack."""

import platform
import shutil
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from deviceplugin.card_source import make_source
from deviceplugin.check import check_node
from deviceplugin.containers.device_nodes import DEVICES
from deviceplugin.gpus.api.check_finding import CheckFinding
from deviceplugin.gpus.api.provable import Provable
from deviceplugin.gpus.api.source import GpuCard, GpuSource
from deviceplugin.host.cgroups import find_pod_parents
from deviceplugin.proof.prover import CardProof, ProofOptions, Prover
from deviceplugin.proof.scratch import ScratchCgroup, interrupt_on_signals
from deviceplugin.settings import Settings


class ProvenCard(msgspec.Struct, frozen=True):
    """A card of the report; the attributes are those of `GpuCard`."""

    uuid: str
    model: str
    total_mib: int
    reserved_mib: int
    parent: str | None = None


class ProofReport(msgspec.Struct, frozen=True):
    """The findings of one run.

    Attributes:
        simulated: the cards were none.
        interrupted: it was interrupted before it was complete; everything was undone.
    """

    gpupack: str
    at: str
    kernel: str
    driver: str
    simulated: bool
    interrupted: bool
    cards: tuple[ProvenCard, ...]
    findings: tuple[CheckFinding, ...]
    proofs: tuple[CardProof, ...]

    @property
    def refuted(self) -> bool:
        """Whether anything is not as documented or promised."""
        return any(proof.result == "refuted" for proof in self.proofs)


def prove_node(settings: Settings, version: str, *, busy: bool, instances: bool) -> ProofReport:
    """Try out what the cards of this node do; interrupted, it undoes what it did and reports what it has.

    Raises:
        ProfileError: the profile of simulated cards cannot be used.
        GpuError: there is no card.
    """
    at = datetime.now(UTC).isoformat(timespec="seconds")
    source = make_source(settings)
    interrupted = False
    findings: list[CheckFinding] = []
    with interrupt_on_signals():
        source.open()
        try:
            cards = [_described(card) for card in source.cards()]
            provable = settings.provider.make_provable(source)
            prover = make_prover(settings, source, provable, busy=busy, instances=instances)
            try:
                findings += check_node(settings)
                prover.run()
            except KeyboardInterrupt:
                interrupted = True
            driver = source.driver_version()
        finally:
            source.close()
    return ProofReport(
        gpupack=version,
        at=at,
        kernel=platform.release(),
        driver=driver,
        simulated=settings.profile is not None,
        interrupted=interrupted,
        cards=tuple(cards),
        findings=tuple(findings),
        proofs=tuple(prover.proofs),
    )


def make_prover(
    settings: Settings, source: GpuSource, provable: Provable, *, busy: bool, instances: bool
) -> Prover:
    """Put together what tries the cards of a node."""
    root = settings.cgroup_root
    options = ProofOptions(
        busy=busy,
        instances=instances,
        cgroup_root=root,
        devices=DEVICES if settings.provider.has_device_nodes else None,
    )
    parent = root
    with suppress(OSError):
        parent = next(find_pod_parents(root), root)
    control, program = settings.provider.make_mps_control(settings.mps_root), settings.provider.mps_program

    def mps(uuid: str) -> str:
        if control is None:
            return "these cards have none"
        state = control.read_state(uuid)
        if state is not None:
            return f"answers, and takes {state.clients} clients"
        where = f"at {path}" if (path := shutil.which(program)) else "not here"
        return f"gpupack mps does not run for it; {program} is {where}"

    return Prover(source, provable, options, ScratchCgroup(parent), mps)


def _described(card: GpuCard) -> ProvenCard:
    return ProvenCard(card.uuid, card.model, card.total_mib, card.reserved_mib, card.parent)
