"""One HTML page from the documents that trtla's commands print; it compares and draws.

The documents' fields are those of trtla.results.
"""
