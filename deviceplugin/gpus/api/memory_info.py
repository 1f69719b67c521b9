"""Memory of one card as its driver states it, and how much of it processes use; pure.

NVIDIA's documents do not agree whether `used` of `nvmlDeviceGetMemoryInfo_v2` has the driver's reserved part
in it. The NVML API Reference says so of the call (R525's also of `nvmlMemory_v2_t`). The struct of later
releases calls it allocated memory, and drivers were seen that leave reserved out. So `free` decides.
"""

from dataclasses import dataclass

from allocator.names import MIB


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """The numbers of one reading, in bytes as the driver gives them.

    Attributes:
        total: all memory of the card, the reserved part included.
        reserved: what the driver keeps for itself; 0 if an old driver does not say.
        free: what can be allocated.
        used: what is allocated; with or without `reserved`, see the module.
    """

    total: int
    reserved: int
    free: int
    used: int

    @property
    def unlisted(self) -> int:
        """Bytes that are neither free nor in `used`: `reserved`, or 0 if `used` has it."""
        return self.total - self.free - self.used

    @property
    def used_by_processes(self) -> int:
        """Bytes that processes use, without `reserved`.

        `unlisted` is the part of `reserved` that is not in `used`. Where the numbers do not add up (it is
        less than nothing, or more than `reserved`) all of `used` counts: never too little.
        """
        if -MIB < self.unlisted < self.reserved:
            return max(0, self.used - (self.reserved - max(0, self.unlisted)))
        return self.used

    @property
    def counts_reserved(self) -> bool | None:
        """Whether `used` has `reserved` in it; None if the numbers do not say."""
        with_it, without = abs(self.unlisted) < MIB, abs(self.unlisted - self.reserved) < MIB
        return None if with_it == without else with_it
