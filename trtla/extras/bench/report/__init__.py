"""The HTML page of a report: reading result documents, comparing arms, drawing charts.

The documents' fields are those of trtla.results.
"""
