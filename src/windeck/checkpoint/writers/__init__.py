"""From state in memory, of one process or many, to one commit."""
