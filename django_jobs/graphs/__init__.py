"""Jobs that come after others: `chain`, `group`, `graph` and `split` build them in memory, `enqueue` stores them in one go."""

from __future__ import annotations

from .build import chain, graph, group, split
from .nodes import Chain, Graph, Group, Node, Policy, Signature
from .result import GraphResult

__all__ = ["Chain", "Graph", "GraphResult", "Group", "Node", "Policy", "Signature", "chain", "graph", "group", "split"]
