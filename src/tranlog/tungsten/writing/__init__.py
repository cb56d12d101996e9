"""Writing a directory as the ancestor does: `directory`."""
