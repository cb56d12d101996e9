"""A log that several nodes hold: who leads, who has what, and what happens to a node that went another way."""
