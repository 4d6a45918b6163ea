"""Language models as they are served: steps of many requests, queues, and what clients see."""
