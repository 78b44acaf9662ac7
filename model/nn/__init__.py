"""The Transformer of "Attention Is All You Need" in torch, in the order and letters of the paper."""
