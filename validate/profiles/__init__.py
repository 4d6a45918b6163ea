"""Calibration profiles: fitted from rows of a benchmark, written, shown and compared.

* judging    which rows are kept back, and how a fit is judged
* kernels    matrix products, attention, memory traffic
* links      curves of collectives, what they cost the host, what hides beside compute
* times      whole collectives, size by size
* runtimes   launches, what eager code moves, memory
* text       a profile as TOML
* table      numbers of a profile, and of two compared
* misses     a profile against every row
* report     a profile for people
"""
