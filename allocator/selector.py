"""Selects the cards that a pod accepts, by model and by UUID."""

from dataclasses import dataclass
from typing import Final, Self

from allocator.cards import Card
from allocator.errors import RequestError, shown
from allocator.names import POD_GPU_MODEL, POD_GPU_UUID

MAX_PATTERNS: Final = 64


@dataclass(frozen=True, slots=True)
class Selector:
    """Patterns over models and UUIDs; a pattern may hold any number of `*`, each for any text.

    A card passes when some pattern of each non-empty list of wanted ones matches it and no excluding
    pattern does. Models compare without regard to case; their patterns are kept in lower case.
    """

    models: tuple[str, ...] = ()
    excluded_models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    excluded_uuids: tuple[str, ...] = ()

    @classmethod
    def parse(cls, model_text: str | None, uuid_text: str | None) -> Self:
        """Read the values of the two pod annotations, None for one that is absent.

        Raises:
            RequestError: an empty pattern, `!` without a pattern, or more than 64 patterns.
        """
        models, excluded_models = _split(
            POD_GPU_MODEL, model_text.lower() if model_text is not None else None
        )
        uuids, excluded_uuids = _split(POD_GPU_UUID, uuid_text)
        return cls(models, excluded_models, uuids, excluded_uuids)

    def __str__(self) -> str:
        """Write for people what the annotations say, excluding patterns last."""
        texts = []
        for name, wanted, excluded in (
            ("gpu-model", self.models, self.excluded_models),
            ("gpu-uuid", self.uuids, self.excluded_uuids),
        ):
            patterns = [*wanted, *(f"!{pattern}" for pattern in excluded)]
            if patterns:
                texts.append(f"{name} is {shown(', '.join(patterns), 128)}")
        return " and ".join(texts)

    @property
    def admits_all(self) -> bool:
        """Whether there is no pattern at all, so that no card needs a look."""
        return not (self.models or self.excluded_models or self.uuids or self.excluded_uuids)

    def admits_model(self, model: str) -> bool:
        return _passes(model.lower(), self.models, self.excluded_models)

    def admits_uuid(self, uuid: str) -> bool:
        return _passes(uuid, self.uuids, self.excluded_uuids)

    def admits(self, card: Card) -> bool:
        return self.admits_all or (self.admits_model(card.model) and self.admits_uuid(card.uuid))


ANY_CARD: Final = Selector()
"""The selector of a pod that names no cards."""


def _split(annotation: str, text: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a comma list into the wanted and the excluding patterns, without repetitions, order kept."""
    if text is None:
        return (), ()
    entries = [entry.strip() for entry in text.split(",")]
    if len(entries) > MAX_PATTERNS:
        raise RequestError(
            f"annotation {annotation} holds {len(entries)} patterns; allowed: at most {MAX_PATTERNS}"
        )
    wanted: dict[str, None] = {}
    excluded: dict[str, None] = {}
    for entry in entries:
        pattern = entry.removeprefix("!").strip()
        if not pattern or pattern.startswith("!"):
            raise RequestError(
                f"annotation {annotation} is {shown(text)}; allowed: a comma list of non-empty patterns, "
                "* for any text, one leading ! to exclude"
            )
        (excluded if entry.startswith("!") else wanted)[pattern] = None
    return tuple(wanted), tuple(excluded)


def _passes(text: str, wanted: tuple[str, ...], excluded: tuple[str, ...]) -> bool:
    if wanted and not any(_matches(pattern, text) for pattern in wanted):
        return False
    return not any(_matches(pattern, text) for pattern in excluded)


def _matches(pattern: str, text: str) -> bool:
    """Match the whole text; linear in its length, so that no pattern can stall a scheduler."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True
