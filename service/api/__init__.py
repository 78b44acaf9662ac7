"""The REST surface: schemas, routes, and the one table from refusal to status."""
