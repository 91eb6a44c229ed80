"""The control plane: what is declared to run, what runs, what went wrong and what was done about it."""
