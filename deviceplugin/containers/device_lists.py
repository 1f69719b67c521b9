"""Tells containers and their runtime which cards are theirs: the device list strategies.

As in NVIDIA's device plugin, several can be had at once:

    envvar            the vendor's environment variable, read by its container runtime
    volume-mounts     mounts of /dev/null by the cards' names, for runtimes that do not trust the variable
    cdi-annotations   CDI names in a container annotation: for runtimes whose kubelet or CRI knows no CDI
    cdi-cri           CDI names in the kubelet's own field (Kubernetes 1.31 and later)
"""

from collections.abc import Sequence
from typing import Final

from deviceplugin.containers.cdi import CdiNames
from deviceplugin.containers.device_nodes import DeviceNodes
from deviceplugin.gpus.api.container_grant import ContainerGrant, Mount
from deviceplugin.gpus.api.vendor import Vendor
from deviceplugin.option_values import CDI_ANNOTATIONS, CDI_CRI, ENVVAR, VOLUME_MOUNTS

ANNOTATION: Final = "cdi.k8s.io/gpupack"
"""Runtimes read every annotation with this prefix; each container has its own annotations."""


class DeviceListStrategies:
    """Describes cards to containers.

    Args:
        names: needed for the strategies with CDI names.
        nodes: give the kubelet the cards' device nodes as well. Whenever it changes a container's cpus it
            tells the runtime which devices that may use. What it does not know of is taken away.
    """

    def __init__(
        self,
        vendor: Vendor,
        strategies: Sequence[str] = (ENVVAR,),
        names: CdiNames | None = None,
        nodes: DeviceNodes | None = None,
    ) -> None:
        self._vendor = vendor
        self._strategies = frozenset(strategies)
        self._cdi = names
        self._nodes = nodes

    def describe_cards(self, uuids: Sequence[str]) -> ContainerGrant:
        """Describe cards to a container and its runtime."""
        names = self._cdi.name_cards(uuids) if self._cdi is not None else ()
        return ContainerGrant(
            envs=self._vendor.make_visible_env(uuids if ENVVAR in self._strategies else ()),
            annotations={ANNOTATION: ",".join(names)} if CDI_ANNOTATIONS in self._strategies else {},
            cdi_devices=names if CDI_CRI in self._strategies else (),
            mounts=self._list_mounts(uuids) if VOLUME_MOUNTS in self._strategies else (),
            devices=self._nodes.list_nodes(uuids) if self._nodes is not None else (),
        )

    def _list_mounts(self, uuids: Sequence[str]) -> tuple[Mount, ...]:
        folder = self._vendor.mounts_folder
        return tuple(Mount(f"{folder}/{uuid}", "/dev/null", read_only=True) for uuid in uuids if folder)


def needs_cdi_names(strategies: Sequence[str]) -> bool:
    return not {CDI_ANNOTATIONS, CDI_CRI}.isdisjoint(strategies)
