"""Parallel corpora: read from packages and files, cleaned, without duplicates, with test sets held out."""
