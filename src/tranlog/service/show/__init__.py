"""What people see of a running pipeline: `views`, `overview`, and the `screen` that `terminal` draws."""
