"""CSV in and out in the background: imports in chunks with their bad rows told, exports with links that expire."""
