"""Plans as TensorRT engines: networks are read back and evaluated, built, run and compared."""
