"""The one error of corpus building."""


class CorpusError(Exception):
    """A recipe, a source or a corpus directory is not as it must be. Says what to do about it."""
