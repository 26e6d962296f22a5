"""Background jobs for Django, kept in the project's own database."""

__version__ = "0.1.0"
