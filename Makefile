# Shorthands; dev.py does the work and needs no make.
PYTHON ?= python3

.PHONY: demo test
demo test:
	$(PYTHON) dev.py $@
