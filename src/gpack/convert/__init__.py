"""Converting models into packs and back: first a plan of what goes where, then one streaming pass."""
