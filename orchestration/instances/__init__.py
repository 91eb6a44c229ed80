"""Instances: started and stopped as processes, supervised, scaled, drained and deployed."""
