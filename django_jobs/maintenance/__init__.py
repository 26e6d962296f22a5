"""The loops of the cluster: every worker tree runs them, and a locked row says whose turn a service is."""
