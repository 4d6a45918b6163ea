"""The planner as a page and as JSON over HTTP, on the loopback address."""
