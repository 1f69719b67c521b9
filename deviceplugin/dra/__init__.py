"""Dynamic resource allocation: cards published in ResourceSlices, and containers served by ResourceClaims."""
