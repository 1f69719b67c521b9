"""A row's cards as the scalar code of `allocator` reads them."""

from allocator.cards import Card
from scheduler_plugin.cluster.arrays import ClusterView


def cards_of(view: ClusterView, row: int) -> tuple[Card, ...]:
    """Write a row's cards in word order, whatever is unhealthy or cordoned counted as used."""
    count = int(view.cards[row])
    uuids = view.uuids[row] or tuple("" for _ in range(count))
    links = view.links[row] or ((),) * count
    return tuple(
        Card(
            index=card,
            uuid=uuids[card],
            model=view.model_names[model] if model >= 0 else "",
            size_units=size,
            used_units=occupied,
            numa=numa if numa >= 0 else None,
            links=links[card],
        )
        for card, (size, occupied, model, numa) in enumerate(
            zip(
                view.size[row, :count].tolist(),
                view.occupied[row, :count].tolist(),
                view.model[row, :count].tolist(),
                view.numa[row, :count].tolist(),
                strict=True,
            )
        )
    )
