"""Settings by which frameworks keep to a share themselves, where nothing holds them to it.

Advice, no limit: a program may set others, and not every framework has one. PyTorch and vLLM read none from
the environment; docs/mps.md says what to write in their place.
"""

from collections.abc import Mapping


def framework_envs(share_mib: int, total_mib: int) -> Mapping[str, str]:
    """Name variables for a share of one card.

    Args:
        share_mib: what the container may use.
        total_mib: what the driver says that the card has, its own part included.
    """
    if not 0 < share_mib <= total_mib:
        return {}
    # Rounded down: JAX takes it of the card's total at once.
    fraction = max(1, 100 * share_mib // total_mib) / 100
    return {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{fraction:.2f}",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
