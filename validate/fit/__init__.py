"""From measured rows to calibration profiles and tables.

`rows` holds what was measured; `kernels`, `collectives` and `runtimes` fit it, by `least_squares`;
`profile` puts the fits together, and `text` writes them as TOML. `report` shows a profile to
people, and `misses` says how far one is from every row.
"""
