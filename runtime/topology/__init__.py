"""What users describe: nodes, how they hang together, and how a part of them becomes one chain of calls."""
