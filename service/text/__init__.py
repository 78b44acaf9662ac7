"""Text to segments of ids and back: everything between the API and the engine that knows what text is."""
