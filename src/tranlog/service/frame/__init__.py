"""How every command begins and ends: `command`, its exit codes (`exits`), and its manual page (`manual`)."""
