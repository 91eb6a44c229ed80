"""Workers as threads and processes: started, supervised, restarted and queried by their client."""
