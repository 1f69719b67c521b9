import pytest

from allocator.request import Demand
from scheduler_plugin.scheduling.filtering import Misfit
from scheduler_plugin.scheduling.reasons import memory, reason

ONE = (Demand((), 8, 1),)
TWO = (Demand((), 4, 2),)
MANY = (Demand((), 8, 1), Demand((), 4, 2))


@pytest.mark.parametrize(
    ("units", "unit_mib", "text"),
    [(8, 1024, "8 GiB"), (3, 512, "1536 MiB"), (4, 512, "2 GiB"), (1, 100, "100 MiB")],
)
def test_memory(units: int, unit_mib: int, text: str) -> None:
    assert memory(units, unit_mib) == text


@pytest.mark.parametrize(
    ("misfit", "demands", "text"),
    [
        (Misfit.NOT_FREE, ONE, "no card with 8 GiB free"),
        (Misfit.NOT_FREE, TWO, "no 2 cards with 4 GiB free each"),
        (Misfit.NOT_FREE, MANY, "no cards with 8 GiB + 2 x 4 GiB free"),
        (Misfit.TOO_SMALL, ONE, "no healthy card of 8 GiB or more"),
        (Misfit.TOO_SMALL, TWO, "no 2 healthy cards of 4 GiB or more"),
        (Misfit.TOO_SMALL, MANY, "no healthy cards that hold 8 GiB + 2 x 4 GiB together"),
        (Misfit.NOT_ADMITTED, ONE, "no card that the pod's gpu-model and gpu-uuid admit"),
        (Misfit.NOT_ADMITTED, TWO, "no 2 cards that the pod's gpu-model and gpu-uuid admit"),
        (Misfit.NOT_ADMITTED, MANY, "no cards that the pod's gpu-model and gpu-uuid admit"),
    ],
)
def test_reasons_name_the_request(misfit: Misfit, demands: tuple[Demand, ...], text: str) -> None:
    assert reason(misfit, demands, 1024) == text


def test_every_misfit_has_a_text() -> None:
    texts = [reason(misfit, ONE, 1024) for misfit in Misfit if misfit is not Misfit.NONE]
    assert len(set(texts)) == len(texts)
