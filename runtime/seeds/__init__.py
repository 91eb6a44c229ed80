"""Seeds: state computed elsewhere, or a snapshot of another application, installed as the state of a stopped application."""
