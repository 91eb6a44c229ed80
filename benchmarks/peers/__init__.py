"""Other engines that the benchmarks compare with this one, with the same programs."""
