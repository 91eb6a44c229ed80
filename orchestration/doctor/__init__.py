"""Examination of everything that a start of an application needs, without changing anything: `penstock doctor`."""
