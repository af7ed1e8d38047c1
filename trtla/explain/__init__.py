"""One step of a real run, printed and drawn: its draft, the target's draws, and why it ended."""
