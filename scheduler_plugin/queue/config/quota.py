"""Quotas: a queue's nominal quota, and what the other queues of its cohort lend. Pure.

Amounts are units of GPU memory. A queue without a nominal quota has no limit: only its weight counts, and it
neither lends nor borrows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quota:
    """The quota of a queue.

    Attributes:
        borrowing_limit: Units that it may have beyond them; None: whatever others lend.
        lending_limit: Unused units of its own that others may have at most; None: all.
    """

    nominal: int | None = None
    borrowing_limit: int | None = None
    lending_limit: int | None = None

    @property
    def most_lent(self) -> int:
        """Units that others may borrow while it uses none."""
        nominal = self.nominal or 0
        return nominal if self.lending_limit is None else min(nominal, self.lending_limit)


@dataclass(slots=True)
class QuotaState:
    """A queue's quota and the units in use.

    Attributes:
        used: Units of its admitted pods and of claims. Claims are not admitted by the queue, so this may
            exceed any quota.
    """

    quota: Quota
    used: int = 0

    @property
    def borrowed(self) -> int:
        """Units in use beyond its nominal quota."""
        return 0 if self.quota.nominal is None else max(0, self.used - self.quota.nominal)

    @property
    def idle(self) -> int:
        """Units of its nominal quota that it does not use."""
        return 0 if self.quota.nominal is None else max(0, self.quota.nominal - self.used)

    @property
    def reserved(self) -> int:
        """Unused units of its nominal quota that its lending limit keeps from others."""
        limit = self.quota.lending_limit
        return 0 if limit is None else max(0, self.idle - limit)


class Cohort:
    """Queues that lend to each other.

    Invariant: together they use at most the sum of their nominal quotas, less what each keeps for itself.
    This holds as long as `allows_units` is checked before every use and the quotas have not changed since.

    Args:
        accounts: By queue; change their usage with `add_units` only.
    """

    def __init__(self, accounts: Mapping[str, QuotaState]) -> None:
        self.accounts = dict(accounts)
        limited = [a for a in self.accounts.values() if a.quota.nominal is not None]
        self._pool = sum(account.quota.nominal or 0 for account in limited)
        self._lendable = sum(account.quota.most_lent for account in limited)
        self._used = sum(account.used for account in limited)
        self._reserved = sum(account.reserved for account in limited)

    def add_units(self, queue: str, units: int) -> None:
        """Add units to the usage of a queue; a negative number subtracts."""
        account = self.accounts[queue]
        if account.quota.nominal is None:
            account.used += units
            return
        self._reserved -= account.reserved
        account.used += units
        self._used += units
        self._reserved += account.reserved

    def allows_units(self, queue: str, units: int) -> bool:
        most = self.compute_headroom(queue)
        return most is None or units <= most

    def compute_headroom(self, queue: str) -> int | None:
        """Return how many more units a queue may use; below 0 after quotas shrank, None: no limit."""
        account = self.accounts[queue]
        quota = account.quota
        if quota.nominal is None:
            return None
        free = self.compute_free(queue)
        if quota.borrowing_limit is None:
            return free
        return min(free, quota.nominal + quota.borrowing_limit - account.used)

    def compute_most(self, queue: str) -> int | None:
        """Return the most units that a queue could use in an idle cohort; None: no limit."""
        quota = self.accounts[queue].quota
        if quota.nominal is None:
            return None
        lent = self._lendable - quota.most_lent
        return quota.nominal + (lent if quota.borrowing_limit is None else min(lent, quota.borrowing_limit))

    def compute_free(self, queue: str) -> int:
        """Return the headroom of a queue without its borrowing limit; below 0 after quotas shrank."""
        return -self._compute_account_missing(self.accounts[queue], 0)

    def fits_nominal(self, queue: str, units: int) -> bool:
        """Return True if a queue with a nominal quota can use that many more units within it."""
        account = self.accounts[queue]
        return account.quota.nominal is not None and account.used + units <= account.quota.nominal

    def compute_missing(self, queue: str, units: int, freed: Mapping[str, int] | None = None) -> int:
        """Return the units that borrowers must give back before a queue can use more of its nominal quota.

        Args:
            units: How many more it wants to use.
            freed: Units by queue that are about to become free; below 0 if more are about to be used.
        """
        if not self.fits_nominal(queue, units):
            return 0
        lacks = self._compute_account_missing(self.accounts[queue], units)
        for name, less in (freed or {}).items():
            account = self.accounts.get(name)
            if account is not None and account.quota.nominal is not None:
                # What a queue does not lend is of no use to others when it becomes free.
                after = QuotaState(account.quota, account.used - less)
                lacks += (after.reserved - account.reserved if name != queue else 0) - less
        return max(0, lacks)

    def compute_lent(self) -> dict[str, int]:
        """Return the units that each queue has lent: its share of everything that is borrowed.

        Shares are whole numbers, and their sum is what is borrowed.
        """
        idle = {
            name: self.accounts[name].idle - self.accounts[name].reserved for name in sorted(self.accounts)
        }
        lendable = sum(idle.values())
        lent = min(sum(account.borrowed for account in self.accounts.values()), lendable)
        shares, before = dict.fromkeys(idle, 0), 0
        for name, units in idle.items() if lendable else ():
            shares[name] = lent * (before + units) // lendable - lent * before // lendable
            before += units
        return shares

    def list_borrowers(self, queue: str) -> list[str]:
        """List the other queues of the cohort that borrow, the one that borrows most first."""
        others = [(account.borrowed, name) for name, account in self.accounts.items() if name != queue]
        return [name for borrowed, name in sorted(others, key=lambda each: (-each[0], each[1])) if borrowed]

    def _compute_account_missing(self, account: QuotaState, units: int) -> int:
        return self._used + units - (self._pool - (self._reserved - account.reserved))


def find_cohorts(queues: Iterable[tuple[str, str]], parents: Mapping[str, str]) -> dict[str, str]:
    """Find the root of each queue's tree of cohorts: queues with the same root lend to each other.

    Args:
        queues: Name and cohort of each, the cohort empty for none.
        parents: Parent cohort by cohort, without circles.

    Returns:
        Root cohort by queue; a queue without a cohort is alone, under a name that no cohort has.
    """
    known: dict[str, str] = {}
    found: dict[str, str] = {}
    for name, cohort in queues:
        root, path = cohort, list[str]()
        while root in parents and root not in known:
            path.append(root)
            root = parents[root]
        root = known.get(root, root)
        known.update(dict.fromkeys(path, root))
        found[name] = f"cohort {root}" if root else f"queue {name}"
    return found
