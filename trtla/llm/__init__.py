"""The public API: a model that is opened once and writes texts."""
