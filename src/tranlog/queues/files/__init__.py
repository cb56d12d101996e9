"""What lies on disk: containers, the journal in them, the catalogue beside them."""
