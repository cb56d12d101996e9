"""The transaction log: segments, positions, cursors, recovery. Knows neither who writes to it nor who reads it.

Rooms, each of which imports only those before it: `records` (bytes), `rules` (decisions), `files` (what lies on disk),
`reading`, `writing`, `upkeep`. Beside them `options`, `properties` (what the ancestor's are here) and `aio`. Write with
`writing.log.Log`, read with `reading.reader.LogReader`; programs import both from `tranlog`.
"""
