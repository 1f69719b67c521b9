"""The cards of the node daemon, made as its settings say."""

from deviceplugin.gpus.api.provider import SourceOptions
from deviceplugin.gpus.api.source import GpuSource
from deviceplugin.host.cgroups import find_pod_parents, in_host_pid_namespace
from deviceplugin.settings import Settings


def make_source(settings: Settings) -> GpuSource:
    """Make the source of cards that the settings name."""
    root = settings.cgroup_root
    return settings.provider.make_source(
        SourceOptions(
            profile=settings.profile,
            watches_profile=True,
            ignored_faults=settings.ignored_xids,
            cgroup_root=root,
            find_probe_parent=lambda: next(find_pod_parents(root), root),
            sees_processes=in_host_pid_namespace(),
        )
    )
