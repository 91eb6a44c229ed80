"""Seeds: state that was computed elsewhere, or taken from a running application, put where an application that is stopped finds it."""
