"""Each accounting rule taken out, one at a time: some history must break that passes with the rule."""

from scheduler_plugin.cache import charges
from tests.property.kernel.mutant import Mutant

from . import extender
from .charge_mutants import CHARGE_MUTANTS
from .choice_mutants import CHOICE_MUTANTS
from .histories import busy, compute, deaf_extender, mixed, others_bind, percent, plain

MUTANTS = (
    Mutant(
        "extender: a bound pod counts until its node holds it",
        charges.ChargeRules.charges_of_bound,
        "pod.charged is not None and (not self.is_confirmed(record, uid)):",
        "False:",
        plain,
    ),
    Mutant(
        "extender: a commitment counts before it is seen bound",
        charges.ChargeRules.charges_of_assumed,
        "if assumed.pod.charged is not None and",
        "if False and",
        mixed,
    ),
    Mutant(
        "extender: a pod that vanished unheld leaves a tombstone",
        charges.ChargeRules.needs_tombstone,
        "return not self.is_confirmed(record, uid) and record.seen_version < version",
        "return False",
        busy,
    ),
    Mutant(
        "extender: a tombstone stays until the node has seen the end",
        charges.ChargeRules.is_tombstone_over,
        "return record.seen_version >= tombstone.version or",
        "return True or",
        busy,
    ),
    Mutant(
        "extender: claims outlive the Node object",
        charges.ChargeRules.keeps_charges_without_node,
        "        return True\n",
        "        return False\n",
        mixed,
    ),
    Mutant(
        "extender: a Binding without an answer counts",
        extender.ModelExtender._doubt,
        "self.unheard.append(binding)",
        "self._roll_back(binding.commitment)",
        percent,
    ),
    Mutant(
        "extender: a pod bound without us counts on every card",
        charges.ChargeRules.charge_every_card,
        "if size >= units:",
        "if False:",
        others_bind,
    ),
    Mutant(
        "extender: compute of a pod that no node holds counts",
        charges.ChargeRules.sum_by_card,
        "if charge.request.asks_compute:",
        "if False:",
        compute,
    ),
    Mutant(
        "extender: compute of a pod bound without us counts on every card",
        charges.ChargeRules.charge_compute,
        "[card for card, size in enumerate(record.sizes) if size >= demand.units_on(size)]",
        "()",
        compute,
    ),
    Mutant(
        "extender: only the node's own holds confirm",
        charges.ChargeRules.is_confirmed,
        "return uid in record.holds",
        "return True",
        plain,
    ),
    Mutant(
        "extender: one that starts lists nodes after pods",
        extender.ModelExtender._open,
        "            self.read_words_anew()\n",
        "",
        deaf_extender,
    ),
    *CHARGE_MUTANTS,
    *CHOICE_MUTANTS,
)
