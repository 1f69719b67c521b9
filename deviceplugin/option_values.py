"""Values that options of the node daemon may have, and defaults that its parts share with the options."""

from pathlib import Path
from typing import Final

DEVICE_PLUGIN: Final = "device-plugin"
DRA: Final = "dra"
SERVES: Final = (DEVICE_PLUGIN, DRA)

ENVVAR: Final = "envvar"
CDI_ANNOTATIONS: Final = "cdi-annotations"
CDI_CRI: Final = "cdi-cri"
VOLUME_MOUNTS: Final = "volume-mounts"
STRATEGIES: Final = (ENVVAR, VOLUME_MOUNTS, CDI_ANNOTATIONS, CDI_CRI)

CDI_FOLDERS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where container runtimes look by default; the later one is for specifications that are generated."""

AUTO: Final = "auto"
OFF: Final = "off"
REQUIRE: Final = "require"
MODES: Final = (AUTO, OFF, REQUIRE)

TIME_SLICING: Final = "time-slicing"
MPS: Final = "mps"
SHARINGS: Final = (TIME_SLICING, MPS)

DEFAULT_TOLERANCE_MIB: Final = 1024
"""A driver keeps some hundred MiB for each process, its context, that no framework knows of.

With libraries they were over 600 on an H100 (tests/hardware).
"""

DEFAULT_QUIET_S: Final = 60.0
"""A card is healthy again after so long without trouble."""

PUBLISH_GAP_S: Final = 2.0
"""Least time between two patches of the Node that only bring gains."""
