"""Optional apps: each is installed by its own name in INSTALLED_APPS."""
