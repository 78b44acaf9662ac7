"""Our own operators for ONNX Runtime in C++: int8 linear maps, attention, top-k; see `build` for how they are made."""
