"""One step of a real run, printed and drawn: what was fed, what the target drew, why it ended."""
