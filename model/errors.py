"""The errors of the model package.

    ModelError
    ├── ConfigError         a model configuration contradicts itself
    ├── TokenizerError      a tokenizer file is missing, damaged, or unfit for the model
    ├── BundleError         a bundle is missing, damaged, or of another format version
    ├── ExportError         a network cannot be turned into graphs
    │   └── ParityError     the graphs do not compute what the network computes
    ├── ProviderError       the asked-for execution provider is not there
    └── DecodeError         a sentence cannot be decoded (too long, wrong ids, bad options)

Each message says what must hold, what was found, and what to do.
"""


class ModelError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(ModelError):
    """A model configuration contradicts itself."""


class TokenizerError(ModelError):
    """A tokenizer file is missing, damaged, or unfit for the model."""


class BundleError(ModelError):
    """A bundle is missing, damaged, or of another format version."""


class ExportError(ModelError):
    """A network cannot be turned into graphs."""


class ParityError(ExportError):
    """The graphs do not compute what the network computes."""


class ProviderError(ModelError):
    """The asked-for execution provider is not there."""


class DecodeError(ModelError):
    """A sentence cannot be decoded: too long, ids outside the vocabulary, or options out of range."""
