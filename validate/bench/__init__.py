"""Micro-benchmarks of one machine: what kernels, collectives and launches take, row by row.

* cases      what is measured, most informative first (pure)
* timing     events, graphs, bursts and sustained load (torch)
* compute, functions, collectives, overheads   the families of cases (torch)
* measure    one case, by its family; worker   one rank's loop over all of them (torch)
* system     files and environment; the session of all ranks, which `planner calibrate` runs
* refit      ``python3 -m validate.bench.refit``: fit rows that are there
"""
