"""The async shell round model.decode: admission, bounded queue, deadlines, cancellation."""
