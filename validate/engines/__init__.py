"""Other people's engines on this host, timed beside what the planner predicts of them.

Weights are random and nothing is downloaded: an engine's own code runs at its real shapes.
"""
