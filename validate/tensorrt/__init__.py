"""Plans as TensorRT engines: networks are evaluated in numpy, built, run and compared.

`command` takes the road: `check` proves a plan's layers (`numbers`, `evaluate`), and builds and
runs its engines (`start`) as far as the host can (`probe`).
"""
