"""How many GPUs a demand needs: replicas, queues and prices."""
