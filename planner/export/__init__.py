"""A plan as a folder: engines and launchers for TensorRT, launch lines for other engines."""
