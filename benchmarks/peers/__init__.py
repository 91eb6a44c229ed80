"""Other engines that the benchmarks measure beside ours, with the same programs."""
