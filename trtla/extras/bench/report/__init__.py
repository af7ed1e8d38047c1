"""The HTML page of a report: a headline, one chart and one table of result files."""
