"""The sub-commands of `penstock`, one module for each group of them."""
