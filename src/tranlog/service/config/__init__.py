"""The configuration: `config` reads the file, `template` writes one, `exposure` says which ports may be opened."""
