"""The verbs: each function is one transaction. No loops, no sleeping, no user code; every change of a job's status is here."""
