"""One machine as a graph, and what follows from it: routes, paths, groups, warnings."""
