"""The version, alone in a file so that neither the build nor the command line imports torch for it."""

__version__ = "0.3.0"
