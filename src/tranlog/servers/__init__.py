"""What a source and a target at one kind of server both know of it: its address, sessions and errors."""
