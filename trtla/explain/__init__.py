"""One step of a real run told and drawn: what lookahead fed, what the target said, why it ended."""
