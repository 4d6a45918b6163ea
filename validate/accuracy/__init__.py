"""How right the models are, on the figures that ship with the project.

`collectives`, `kernels` and `plans` hold published figures, `runs` what was run on GPUs; `figures`
reads and scores any of them, and `table` scores all.
"""
