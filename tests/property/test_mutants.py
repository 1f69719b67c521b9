"""Every rule is needed: without it some history of its model fails that passes with it."""

from pathlib import Path

import pytest

from allocator.errors import PackingError
from tests.property.claimed.mutants import MUTANTS as OF_CLAIMS
from tests.property.grouped.mutants import MUTANTS as OF_GROUPS
from tests.property.kernel.history import ViolationError
from tests.property.kernel.mutant import Mutant
from tests.property.kernel.proven import Record
from tests.property.onetruth.mutants import MUTANTS as OF_ONE_TRUTH
from tests.property.queued.mutants import MUTANTS as OF_TWO_QUEUES
from tests.property.queuemodel.mutants import MUTANTS as OF_THE_QUEUE
from tests.property.undercount.mutants import MUTANTS as OF_ACCOUNTING

HERE = Path(__file__).parent
RECORDS = {
    "undercount": Record(
        HERE / "undercount", OF_ACCOUNTING, failures=(ViolationError, KeyError, PackingError)
    ),
    "claimed": Record(HERE / "claimed", OF_CLAIMS, failures=(ViolationError, KeyError)),
    "grouped": Record(HERE / "grouped", OF_GROUPS),
    "onetruth": Record(HERE / "onetruth", OF_ONE_TRUTH, range(400), failures=(AssertionError,)),
    "queuemodel": Record(HERE / "queuemodel", OF_THE_QUEUE, range(1000, 1120)),
    "queued": Record(HERE / "queued", OF_TWO_QUEUES),
}


@pytest.mark.mutants
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("model", "mutant"),
    [
        pytest.param(model, mutant, id=f"{model}: {mutant.name}")
        for model, record in RECORDS.items()
        for mutant in record.pending()
    ],
)
def test_every_rule_is_needed_in_some_history(model: str, mutant: Mutant) -> None:
    RECORDS[model].prove(mutant)
