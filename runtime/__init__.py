"""The engine. Applications import public names from `penstock`, `penstock.serdes` and `penstock.testing`; the modules here may change."""
