"""The data source `penstock.state`: a snapshot's stores as a DataFrame."""
