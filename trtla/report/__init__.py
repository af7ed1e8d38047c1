"""One HTML page from the documents that trtla's commands print; draws, compares, never measures.

Knows the documents' fields and trtla.charts; no model, no torch, no flag.
"""
