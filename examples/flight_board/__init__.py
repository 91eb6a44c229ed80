"""The flight board: departures of 2013 as a stream, joined, counted and averaged."""
