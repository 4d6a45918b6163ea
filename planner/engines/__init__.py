"""What runs a plan: each engine's habits, what it refuses, and how it is launched."""
