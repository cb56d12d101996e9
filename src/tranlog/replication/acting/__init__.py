"""The parts that carry out the decisions of replication."""
