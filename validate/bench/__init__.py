"""Micro-benchmarks of one machine: what kernels, collectives and launches take, row by row.

* shapes, cases   what is measured, most informative first (pure)
* timing          events, graphs, bursts and sustained load (torch)
* compute, functions, hosting, exchange, beside, memory   the families of cases (torch)
* family, worker  one case; one rank's loop over all of them (torch)
* machine         what was measured on (torch)
* harness         files, processes, environment and screen
* session         ``python3 -m validate.bench.session``
"""
