"""Taking the cards: the serial commit, its Binding, and batches in two tiers."""
