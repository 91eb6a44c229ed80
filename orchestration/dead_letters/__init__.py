"""Dead letters: the topic that stores records a run-book has skipped, and their replay to the input."""
