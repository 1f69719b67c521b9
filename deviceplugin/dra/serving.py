"""Puts together the parts that serve claims on a node."""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Callable
from typing import Final

import msgspec

from allocator.names import DRA_API, is_card_resource
from deviceplugin.allocation.allocation_service import MakeGrant
from deviceplugin.allocation.card_list import CardList
from deviceplugin.allocation.ledger_service import LedgerService
from deviceplugin.allocation.own_node import OwnNode
from deviceplugin.allocation.own_pods import OwnPods
from deviceplugin.allocation.reconciler import CgroupProber
from deviceplugin.dra.cdi_files import CdiFiles
from deviceplugin.dra.claim_service import ClaimService
from deviceplugin.dra.claim_status import ClaimStatusWriter
from deviceplugin.dra.plugin_service import DraPlugin
from deviceplugin.dra.prepared_claims import FOLDER, PreparedClaims
from deviceplugin.dra.registration import DraRegistrar, plugin_folder
from deviceplugin.dra.slice_publisher import SlicePublisher
from deviceplugin.errors import CheckpointError, DevicePluginError, KindInUseError
from deviceplugin.gpus.api.source import GpuSource
from deviceplugin.host.cgroups import CgroupProbe
from deviceplugin.kubelet.call_runner import Observe
from deviceplugin.kubelet.checkpoint import CheckpointReader
from deviceplugin.kubelet.registrars import Registrars
from deviceplugin.settings import Settings
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound, decode_answer
from kubeapi.objects import ServerVersion

SERVER_TIMEOUT_S: Final = 5.0
LEAST_VERSION: Final = (1, 36)
"""Kubernetes version that keeps shares of a device, KEP-5075, without a feature gate."""


class ClaimServing:
    """The parts of a node daemon whose pods get their cards by claims."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        prepared: PreparedClaims,
        account: LedgerService,
        pods: OwnPods,
        own_node: OwnNode,
        card_list: CardList,
        source: GpuSource,
        checkpoint_reader: CheckpointReader,
        make_grant: MakeGrant,
        observe: Observe,
        on_registered: Callable[[], None],
        owns_node: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._checkpoint_reader = checkpoint_reader
        self._service = ClaimService(
            account,
            pods,
            client,
            prepared,
            CdiFiles(settings.cdi_dirs),
            make_grant,
            node_name=settings.node_name,
            unit_mib=settings.unit_mib,
        )
        plugin = DraPlugin(self._service, settings.node_name, observe=observe)
        registrar = DraRegistrar(plugin, settings.kubelet_dir, on_registered=on_registered)
        self.registrars = Registrars(
            [registrar], f"call {registrar.registry}: --kubelet-dir is the kubelet's --root-dir"
        )
        self._publisher = SlicePublisher(
            client,
            account,
            own_node,
            lambda: card_list.gpus,
            node_name=settings.node_name,
            unit_mib=settings.unit_mib,
            card_policy=settings.card_policy,
            driver=source.driver_version,
            ready=lambda: registrar.is_registered and account.ledger.is_complete and owns_node(),
            gap_s=settings.publish_gap_s,
        )

        self._statuses = ClaimStatusWriter(client, account, prepared, node_name=settings.node_name)

    @property
    def problem(self) -> str | None:
        """Why the cards are not published, or containers of a claim cannot start; None if all is well."""
        return self._publisher.problem or self._service.problem

    async def begin(self, cgroups: CgroupProber) -> None:
        """Restore what is prepared.

        Raises:
            KindInUseError: containers run with devices of the device plugin, or that is not known.
            CheckpointError: what is prepared cannot be read.
        """
        await asyncio.to_thread(check_no_devices, self._checkpoint_reader, cgroups)
        await self._service.restore()

    async def watch_changes(self) -> AsyncGenerator[None]:
        """Never yield: code that changes the prepared claims notifies the ledger itself."""
        await asyncio.Event().wait()
        yield

    async def purge(self) -> None:
        """Do nothing: the kubelet unprepares claims by itself."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publisher.run())
            group.create_task(self._statuses.run())
            group.create_task(self._service.follow_ends())


def make_prepared_claims(settings: Settings) -> PreparedClaims:
    """Make the store of this node's prepared claims; nothing is read yet."""
    return PreparedClaims(plugin_folder(settings.kubelet_dir) / FOLDER, settings.resource)


def check_no_devices(checkpoint_reader: CheckpointReader, cgroups: CgroupProber) -> None:
    """Refuse to serve claims beside containers that have devices of the device plugin, of any unit. Blocking.

    Raises:
        KindInUseError: there are such containers, or that is not known.
    """
    try:
        contents = checkpoint_reader.read()
    except CheckpointError as error:
        # A kubelet that has no device plugin never writes this file again.
        raise KindInUseError(
            f"--serve dra: pods may have devices of the device plugin: {error}; if that lasts, drain the "
            "node, remove the file, then start again"
        ) from error
    entries = contents.entries if contents is not None else ()
    uids = {entry.uid for entry in entries if is_card_resource(entry.resource)}
    alive = _find_running(cgroups, uids)
    if alive:
        raise KindInUseError(
            f"--serve dra: {len(alive)} pods of this node have devices of the device plugin, "
            f"such as {alive[0]}: drain the node, then start again"
        )


def _find_running(cgroups: CgroupProber, uids: set[str]) -> list[str]:
    probe = cgroups.probe(uids) if uids else CgroupProbe()
    return sorted(probe.alive | probe.unknown)


def find_obstacles(settings: Settings, cgroups: CgroupProber) -> list[str]:
    """Say what on this node keeps claims from being served. Blocking."""
    found = [
        f"no folder {folder}: the kubelet makes it, and it is to be mounted"
        for folder in (settings.kubelet_dir / "plugins", settings.kubelet_dir / "plugins_registry")
        if not folder.is_dir()
    ]
    cdi = settings.cdi_dirs[-1]
    there = next((folder for folder in (cdi, *cdi.parents) if folder.is_dir()), cdi)
    if not os.access(there, os.W_OK):
        found.append(f"CDI files cannot be written to {cdi}")
    try:
        check_no_devices(CheckpointReader(settings.device_plugin_dir), cgroups)
    except DevicePluginError as error:
        found.append(str(error))
    return found


class _ServedResource(msgspec.Struct):
    name: str


class _ServedGroup(msgspec.Struct):
    resources: list[_ServedResource]


async def find_server_obstacles(client: KubeClient) -> list[str]:
    """Say what in the cluster's API keeps claims from being served.

    Raises:
        KubeApiError: The API server does not answer, or what it answers cannot be read.
    """
    body = await client.get("/version", timeout_s=SERVER_TIMEOUT_S)
    version = decode_answer(body, msgspec.json.Decoder(ServerVersion).decode, "a version")
    # Some clouds write the minor version as "36+".
    numbers = re.match(r"(\d+)\.(\d+)", f"{version.major}.{version.minor}")
    found = []
    if numbers is None or (int(numbers[1]), int(numbers[2])) < LEAST_VERSION:
        found.append(f"the API server is Kubernetes {version.git_version[:64]}; allowed: 1.36 or later")
    try:
        body = await client.get(DRA_API, timeout_s=SERVER_TIMEOUT_S)
        group = decode_answer(body, msgspec.json.Decoder(_ServedGroup).decode, "a list of resources")
        served = {each.name for each in group.resources}
    except NotFound:
        served = set()
    missing = [name for name in ("resourceclaims", "resourceslices") if name not in served]
    if missing:
        found.append(f"the API server does not serve {', '.join(missing)} of resource.k8s.io/v1")
    return found


def check_no_claims(settings: Settings, cgroups: CgroupProber) -> None:
    """Refuse to serve as a device plugin beside containers that have their cards by claims.

    Raises:
        KindInUseError: there are such containers.
    """
    folder = plugin_folder(settings.kubelet_dir) / FOLDER
    if not folder.is_dir():
        return
    prepared = PreparedClaims(folder, settings.resource)
    prepared.load()
    if prepared.unread_uids:
        raise KindInUseError(
            f"--serve device-plugin: claims in {folder} cannot be read, such as {min(prepared.unread_uids)}, "
            "so that their pods may run: drain the node, remove the files, then start again"
        )
    alive = _find_running(cgroups, {claim.pod_uid for claim in prepared})
    if alive:
        raise KindInUseError(
            f"--serve device-plugin: {len(alive)} pods of this node have their cards by claims, "
            f"such as {alive[0]}: drain the node, then start again"
        )
