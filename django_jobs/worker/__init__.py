"""The loops of a worker: one supervisor, its processes, and what each of them is made of."""
