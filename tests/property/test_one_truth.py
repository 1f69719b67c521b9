"""One truth: whoever is asked about a pod's cards, what is free, and why a pod waits answers the same.

A scene is a small random cluster as the API server has it: see `onetruth.scene`. Its objects are given to
filter, bind, the queue, preemption, `why`, `fit`, `top`, `advise`, the dashboard and the simulator, and their
answers are compared with each other, with those of the nodes' ledgers, and with what trying everything out
finds (`onetruth.truth`). Asked is

1. which cards a pod has, and how many units of each,
2. what is free of every card,
3. which nodes take a pod that waits, and what is in the way on the others, in filter's words,
4. what the end of a pod frees, and that no less is free once it has ended.

On nodes that serve claims pods that ask by limits share cards with pods whose claims others allocated.

Where answers differ on purpose:

- A Binding on its way is known to the extender alone, as are tombstones of pods that vanished unheld and room
  that is kept for others: the first is what its counts differ by, the others have ended here.
- A pod that the words do not have yet is charged where its Binding says as long as all of that can be true of
  the node's cards; else, as every pod that others bound, on each card that could take it. People are shown
  what is left of the Binding, or that nobody knows.
- The dashboard has nothing free on a node that takes no pods; `top` shows its cards as they are. A node
  without a device plugin has no cards for filter, and is shown with those that it had.
- Filter sees cards only: cordons, taints, cpu and the node's sum are kube-scheduler's. `fit` and `advise` ask
  about pods of which only the cards are known: those of `fit` stand taints that people set.
- Filter refuses a pod that waits in its queue again on every node; what it says here is said of the pod once
  it is released.
- What others use beyond a card that is full of pods nobody but its node knows: words stop at the card's size.
- A pod with claims is on its cards once the words hold it; before that only what is free is less. Of pods
  that share a claim the words hold the first. `advise` and preemption move and evict pods that ask by limits.
- In the simulator nobody runs when it begins, cards that are out of use are cards, cards of several kinds
  on a node are several nodes, and of containers that share a card only the sum is known.
"""

from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.property.onetruth.checks import ask_everybody


@examples(200)
@given(st.integers(0, 2**32 - 1))
def test_every_place_answers_alike(seed: int) -> None:
    ask_everybody(seed)
