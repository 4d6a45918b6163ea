"""Builds and runs the engines of a plan; needs numpy and TensorRT, nothing else of the planner."""
