"""Models read from ONNX graphs: what is recognised, as a configuration that readers take."""
