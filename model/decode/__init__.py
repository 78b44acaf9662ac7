"""Search and in-flight batching over a Stepper. Standard library and numpy only."""
