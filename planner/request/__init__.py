"""What is asked: the model's size in tokens, the plan, the GPUs of a machine."""
