"""Names of one vendor's cards for containers and people. A source of cards brings its vendor along."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

_DOMAIN: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)+")
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]*")
_WORD: Final = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Vendor:
    """A maker of cards: its names.

    Attributes:
        domain: Domain of its names in CDI, `nvidia.com`.
        visible_devices: Environment variable that names the cards to its container runtime.
        fault: What the numbered errors of its driver are called, `XID`.
        hide_all_value: Value of `visible_devices` that shows a container no card; empty if there is none.
        mounts_folder: Folder of a container in which its mounts name the cards to that runtime; empty if the
            runtime has no such way.
        driver_folder: Where containers expect the driver that no runtime brings; empty if that is not known.
        node_pattern: Path of a card's device node, with `{}` for its minor number; empty if not known.
        control_nodes: Device nodes that go with every card.
        capability_pattern: Path of a capability's device node, with `{}` for its minor number; empty where
            instances of the cards have none that are known here.
        fault_meanings: What numbered errors mean, for people.
        foreign_resources: Regular expression of the extended resources that the vendor's own device plugin
            offers; empty if there is none.
        foreign_advice: How that plugin is kept off a node.
    """

    domain: str
    visible_devices: str
    fault: str
    hide_all_value: str = ""
    mounts_folder: str = ""
    driver_folder: str = ""
    node_pattern: str = ""
    control_nodes: tuple[str, ...] = ()
    capability_pattern: str = ""
    fault_meanings: Mapping[int, str] = field(default_factory=dict, hash=False)
    foreign_resources: str = ""
    foreign_advice: str = ""

    def find_faults(self) -> tuple[str, ...]:
        """Say what is wrong with the names, one line each; empty when they can be used."""
        return tuple(
            f"{field}: {value[:256]!r}; allowed: {allowed}"
            for field, value, form, allowed in (
                ("domain", self.domain, _DOMAIN, "a DNS name such as example.com"),
                ("visible_devices", self.visible_devices, _VARIABLE, "a variable such as CARDS_VISIBLE"),
                ("fault", self.fault, _WORD, "one word of letters"),
            )
            if not form.fullmatch(value)
        )

    @property
    def cdi_kind(self) -> str:
        """The kind of its CDI devices."""
        return f"{self.domain}/gpu"

    @property
    def fault_event(self) -> str:
        """The reason of Kubernetes Events about its numbered errors, `GPUXidError`."""
        return f"GPU{self.fault.capitalize()}Error"

    def name_card_node(self, minor: int) -> str:
        """Name a card's device node; empty if that is not known."""
        return self.node_pattern.format(minor) if self.node_pattern and minor >= 0 else ""

    def name_capability_node(self, minor: int | None) -> str:
        """Name the device node of a capability of its driver; empty if that is not known."""
        return "" if minor is None else self.capability_pattern.format(minor)

    def is_card_node(self, path: str) -> bool:
        """Tell whether a path is a card's device node, whichever card's."""
        before, _, after = self.node_pattern.partition("{}")
        number = path.removeprefix(before).removesuffix(after)
        return bool(self.node_pattern) and path == f"{before}{number}{after}" and number.isdecimal()

    def make_visible_env(self, uuids: Sequence[str]) -> dict[str, str]:
        """Name the variable that shows exactly these cards; none of them: what hides all."""
        shown = ",".join(uuids) or self.hide_all_value
        return {self.visible_devices: shown} if shown else {}
