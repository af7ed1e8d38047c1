"""Results of commands: metrics, JSON documents, and the environment of a measurement."""
