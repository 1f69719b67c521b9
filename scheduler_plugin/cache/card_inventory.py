"""What cards are, whoever uses them: models, UUIDs, NUMA nodes, links; and which cards a selector admits."""

from collections.abc import Sequence

import numpy as np

from allocator.selector import Selector
from kubeapi.bounded import BoundedDict
from scheduler_plugin.cache.arrays import (
    BoolArray,
    IntArray,
    LongArray,
    RowArray,
    add_cards,
    add_rows,
    copy_columns,
)


class CardInventory:
    """The cards of nodes by position, as their daemons publish them.

    Attributes:
        version: int64[R], +1 when UUIDs or models change.
        uuids: The cards' UUIDs by row, empty if not known.
        links: NVLinks from each card of a row to each, by row; empty if there are none.
        model: int32[R, K], index into `model_names`, -1 where the model is not known.
        model_names: Card models seen so far; only ever appended to.
        mixed_models: bool[R], the row's cards are of more than one model.
        numa: int32[R, K], NUMA node, -1 where not known.
    """

    def __init__(self, rows: int, cards: int) -> None:
        self.version: LongArray = np.zeros(rows, dtype=np.int64)
        self.uuids: list[tuple[str, ...]] = [()] * rows
        self.links: list[tuple[tuple[int, ...], ...]] = [()] * rows
        self.model: IntArray = np.full((rows, cards), -1, dtype=np.int32)
        self.model_names: list[str] = []
        self.mixed_models: BoolArray = np.zeros(rows, dtype=np.bool_)
        self.numa: IntArray = np.full((rows, cards), -1, dtype=np.int32)
        self._model_ids: dict[str, int] = {}

    def copy(self) -> "CardInventory":
        return copy_columns(self)

    def set_cards(
        self,
        row: int,
        uuids: Sequence[str] = (),
        models: Sequence[str] = (),
        numa: Sequence[int] = (),
        links: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """Set what a row's cards are; whatever is empty is not known."""
        ids = [self._get_model_id(model) for model in models]
        self.mixed_models[row] = len(set(ids)) > 1
        ids += [-1] * (self.model.shape[1] - len(ids))
        if self.uuids[row] != tuple(uuids) or self.model[row].tolist() != ids:
            self.uuids[row] = tuple(uuids)
            self.model[row] = ids
            self.version[row] += 1
        self.numa[row, : len(numa)] = numa
        self.numa[row, len(numa) :] = -1
        self.links[row] = tuple(links)

    def snapshot(self, row: int) -> tuple[object, ...]:
        """Return a value that differs where anything about a row's cards does."""
        return int(self.version[row]), self.links[row], self.numa[row].tobytes()

    def _get_model_id(self, model: str) -> int:
        known = self._model_ids.get(model)
        if known is None:
            known = self._model_ids[model] = len(self.model_names)
            self.model_names.append(model)
        return known

    def add_rows(self, more: int) -> None:
        self.uuids += [()] * more
        self.links += [()] * more
        self.version = add_rows(self.version, more)
        self.mixed_models = add_rows(self.mixed_models, more)
        self.model = add_rows(self.model, more, -1)
        self.numa = add_rows(self.numa, more, -1)

    def add_cards(self, width: int) -> None:
        self.model = add_cards(self.model, width, -1)
        self.numa = add_cards(self.numa, width, -1)


class SelectorMasks:
    """Card masks by selector, brought up to date by row when an inventory changes."""

    def __init__(self, limit: int = 64) -> None:
        self._known: BoundedDict[Selector, tuple[BoolArray, LongArray]] = BoundedDict(limit)

    def get_mask(self, inventory: CardInventory, selector: Selector) -> BoolArray | None:
        """Tell which cards a selector admits: bool[R, K], None for all."""
        if selector.admits_all:
            return None
        mask, made = self._known.recall(selector, lambda: _make_stale_mask(inventory))
        if mask.shape != inventory.model.shape:
            mask, made = self._known[selector] = _make_stale_mask(inventory)
        stale = np.flatnonzero(made != inventory.version)
        if stale.size:
            mask[stale] = _compute_mask(inventory, selector, stale)
            made[stale] = inventory.version[stale]
        return mask


def _make_stale_mask(inventory: CardInventory) -> tuple[BoolArray, LongArray]:
    shape = inventory.model.shape
    return np.zeros(shape, dtype=np.bool_), np.full(shape[0], -1, dtype=np.int64)


def _compute_mask(inventory: CardInventory, selector: Selector, rows: RowArray) -> BoolArray:
    """Evaluate the selector once for each model and each UUID."""
    # The last entry is for cards of unknown model, index -1.
    names = (*inventory.model_names, "")
    models = np.array([selector.admits_model(model) for model in names], dtype=np.bool_)
    admitted: BoolArray = models[inventory.model[rows]]
    if selector.uuids or selector.excluded_uuids:
        for at, row in enumerate(rows.tolist()):
            uuids = inventory.uuids[row]
            for card in range(admitted.shape[1]):
                admitted[at, card] &= selector.admits_uuid(uuids[card] if card < len(uuids) else "")
    return admitted
