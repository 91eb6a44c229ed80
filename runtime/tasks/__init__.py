"""Tasks: active ones, which process, and the global one, which keeps full copies of topics."""
