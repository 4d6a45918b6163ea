"""Plans run on this host: request, cases, proofs or runs on ranks, rows, comparison, report.

`command` takes this road. `cases` are what is asked for, `checks` refuse what cannot run, `host` is
what this machine has, `restarts` run the ranks, `measured` are their rows, `compare` puts them
beside what is predicted, and `report` shows it.
"""
