"""Configuration, processes and the command line."""
