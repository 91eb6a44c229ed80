"""The live board, `penstock board`: one local web page with the state of applications, read from Kafka alone (docs/board.md).

follower.py     threads that read an application's topics and offsets
state.py        what they have read, as a document: nested mappings
rates.py        counters as records per second
difference.py   the difference of two documents, as a JSON merge patch
publisher.py    the newest document, for any number of viewers
server.py       the page, the token, and the stream of differences
static/         the page
"""
