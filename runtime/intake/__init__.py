"""From the topics to a task: read, decode, and put in order."""
