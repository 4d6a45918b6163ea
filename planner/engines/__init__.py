"""Engines and TensorRT as tables say: what they run, their habits and options, by version."""
