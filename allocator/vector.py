"""The packing of `allocator.packing` for many nodes of one layout at once; the scalar one is the oracle.

Rejected, never masked: decoding refuses the whole array when one row is bad. `valid_words` and
`valid_nodes` tell which rows those are, so that a caller can leave them out first.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from allocator.errors import PackingError
from allocator.packing import Layout

_INT32_BITS: Final = 31


def _fields(bits: int, cards: int) -> tuple[Layout, npt.NDArray[np.int64]]:
    """Return the layout, checked, and how many cards each word holds, shape [w]."""
    layout = Layout(bits, cards, unit_mib=1)
    fields = np.full(layout.word_count, layout.cards_per_word, dtype=np.int64)
    if cards:
        fields[-1] = cards - (layout.word_count - 1) * layout.cards_per_word
    return layout, fields


def valid_words(words: npt.NDArray[np.int64], bits: int, cards: int) -> npt.NDArray[np.bool_]:
    """Tell which rows decode: no negative word, no bit beyond the last card of its word.

    Args:
        words: int64, shape [n, w], w the layout's number of words.
        bits: field width, 1..53.
        cards: cards of each node, 0..1023.

    Returns:
        bool, shape [n].

    Raises:
        PackingError: the layout is impossible or the array has another shape.
    """
    layout, fields = _fields(bits, cards)
    if words.ndim != 2 or words.shape[1] != layout.word_count:  # noqa: PLR2004 (node and word)
        raise PackingError(
            f"words of shape {list(words.shape)} for {cards} cards of {bits} bits: "
            f"allowed is [nodes, {layout.word_count}]"
        )
    valid: npt.NDArray[np.bool_] = np.all((words >= 0) & (words >> fields * bits == 0), axis=1)
    return valid


def valid_nodes(
    sizes: npt.NDArray[np.signedinteger], used: npt.NDArray[np.signedinteger]
) -> npt.NDArray[np.bool_]:
    """Tell which rows of decoded values hold: 0 <= used <= size for every card.

    Args:
        sizes: shape [n, cards].
        used: the same shape.

    Returns:
        bool, shape [n].
    """
    valid: npt.NDArray[np.bool_] = np.all((used >= 0) & (used <= sizes), axis=1)
    return valid


def decode_many(
    words: npt.NDArray[np.int64], bits: int, cards: int
) -> npt.NDArray[np.int32] | npt.NDArray[np.int64]:
    """Unpack the words of many nodes of one layout.

    Args:
        words: int64, shape [n, w], w the layout's number of words.
        bits: field width, 1..53.
        cards: cards of each node, 0..1023.

    Returns:
        One value per card, shape [n, cards]; int32, and int64 where fields are wider than 31 bits.

    Raises:
        PackingError: the layout is impossible, the array has another shape, or some row does not decode.
    """
    valid = valid_words(words, bits, cards)
    if not valid.all():
        row = int(np.argmin(valid))
        raise PackingError(
            f"words {words[row].tolist()} in row {row}: "
            f"allowed are {cards} cards of {bits} bits, not negative"
        )
    per_word = Layout(bits, cards, unit_mib=1).cards_per_word
    card = np.arange(cards)
    values = words[:, card // per_word] >> (card % per_word * bits) & ((1 << bits) - 1)
    return values.astype(np.int32) if bits <= _INT32_BITS else values
