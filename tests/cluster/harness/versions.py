"""The Kubernetes versions that a cluster can be made of: those pinned in `kubebin/1.NN/go.mod`."""

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "kubebin"
VARIABLE = "GPUPACK_KUBE_VERSION"
# What kube-apiserver needs beyond the flags that all versions get, by minor version.
_MUTATING_POLICIES = {
    "feature-gates": "MutatingAdmissionPolicy=true",
    "runtime-config": "admissionregistration.k8s.io/v1beta1=true",
}

POD_GROUPS_SINCE = "1.37"
POD_GROUP_GATES = {
    "feature-gates": "GenericWorkload=true,TopologyAwareWorkloadScheduling=true,WorkloadWithJob=true,"
    "PodGroupPreemptionPolicy=true"
}
"""What every part of a control plane needs for Kubernetes' own PodGroups; they are beta and off in 1.37."""

POD_GROUP_APIS = {"runtime-config": "scheduling.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha3=true"}
API_SERVER_FLAGS = {"1.34": _MUTATING_POLICIES, "1.35": _MUTATING_POLICIES}


@dataclass(frozen=True, slots=True)
class Version:
    """A pinned Kubernetes version.

    Attributes:
        number: As in "1.37.1".
        modules: The folder of its go.mod and go.sum.
    """

    number: str
    modules: Path

    @property
    def minor(self) -> str:
        """As in "1.37"."""
        return self.modules.name


def pinned() -> list[Version]:
    """All versions that can be picked, the oldest first."""
    found = []
    for modules in SOURCES.glob("1.*/go.mod"):
        required = re.search(r"^\tk8s\.io/kubernetes v(\S+)$", modules.read_text(), re.MULTILINE)
        assert required is not None, f"{modules} requires no k8s.io/kubernetes"
        found.append(Version(required[1], modules.parent))
    return sorted(found, key=lambda version: [int(part) for part in version.number.split(".")])


def picked() -> Version:
    """The version that `GPUPACK_KUBE_VERSION` names, in whole or by its minor version; else the newest.

    Raises:
        ValueError: If it names none of them; one line that says which there are.
    """
    allowed = pinned()
    name = os.environ.get(VARIABLE)
    if not name:
        return allowed[-1]
    for version in allowed:
        if name in {version.number, version.minor}:
            return version
    numbers = ", ".join(version.number for version in reversed(allowed))
    raise ValueError(f"no Kubernetes {name} here: KUBE_VERSION may be one of {numbers}, or its minor version")


@cache
def minor_of(programs: Path) -> str:
    """The minor version of a folder of programs, as they say it themselves: "1.37".

    Raises:
        RuntimeError: If kube-apiserver says something else.
    """
    command = [str(programs / "kube-apiserver"), "--version"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    found = re.match(r"Kubernetes v(\d+\.\d+)\.", told)
    if found is None:
        raise RuntimeError(f"{command[0]} --version says {told[:256]!r}")
    return found[1]


def older(programs: Path) -> str | None:
    """The minor version of a folder of programs; None if it is the newest of those pinned."""
    minor = minor_of(programs)
    return None if minor == pinned()[-1].minor else minor
