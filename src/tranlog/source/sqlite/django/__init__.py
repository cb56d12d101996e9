"""Django's backend over a captured SQLite database: `"ENGINE": "tranlog.source.sqlite.django"` in DATABASES."""
