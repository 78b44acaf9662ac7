"""State dict to ONNX graphs built by hand, calibration, and the proof that they equal the network."""
