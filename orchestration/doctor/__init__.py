"""What a start of an application needs, looked at without changing anything: `penstock doctor`."""
