"""What tests own instead of the machine: disk, clock, servers. Shipped, because users test with it."""
