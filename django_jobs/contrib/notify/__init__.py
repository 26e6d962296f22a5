"""Notifications of failures: by e-mail and on the site, one for each group of equal failures."""
