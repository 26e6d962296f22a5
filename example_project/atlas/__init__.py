"""The atlas: countries, cities, and the jobs that work on them."""
