"""What carries out the decisions of replication."""
