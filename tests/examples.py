"""Which examples hypothesis tries: the same ones everywhere, or those of a random seed.

The same ones are tried unless `GPUPACK_RANDOM_EXAMPLES=1`, so that a change is judged by what it does. `make
test-random` tries others, twice as many, and prints the seed that finds them again.
"""

import os
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

ARE_RANDOM: Final = os.environ.get("GPUPACK_RANDOM_EXAMPLES") == "1"


def examples(count: int) -> settings:
    """Set how many examples are tried: of the same ones a fourth, of random ones half."""
    return settings(max_examples=_some_of(count))


def _some_of(count: int) -> int:
    return count // 2 if ARE_RANDOM else count // 4


def choose_examples() -> None:
    """Load the settings that all tests share; no test asserts how long something takes."""
    pin_constants()
    settings.register_profile(
        "gpupack",
        max_examples=_some_of(100),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=not ARE_RANDOM,
    )
    settings.load_profile("gpupack")


def pin_constants() -> None:
    """Keep hypothesis from drawing constants that it finds in the modules loaded so far.

    Which modules are loaded depends on the tests that ran before in the same process. Modules below a folder
    called `test` or `tests` are never read, also where that folder is the one a repository was cloned into.
    So a random seed would not find its examples again either.
    """
    none = Constants()
    providers._get_local_constants = lambda: none  # There is no setting for it.
