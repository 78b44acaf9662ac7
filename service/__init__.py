"""Serves bundles over REST from Ray Serve replicas. No torch anywhere."""
