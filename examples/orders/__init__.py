"""Bills of a shop's orders, and sales per city."""
