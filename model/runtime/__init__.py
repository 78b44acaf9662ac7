"""ONNX Runtime sessions and the Stepper that runs the graphs."""
