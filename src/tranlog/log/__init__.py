"""The transaction log: segments, positions, cursors, recovery. Knows neither who writes to it nor who reads it."""
