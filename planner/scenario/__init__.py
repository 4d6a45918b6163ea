"""A request from keywords, and what it names looked up: model, workload, deployment."""
