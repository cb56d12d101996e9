"""PostgreSQL as a source: what its output plugin sends, as transactions and values of ours."""
