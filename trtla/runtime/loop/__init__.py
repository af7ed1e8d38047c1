"""The torch executor's loop: plan, draft, forward, verify, commit."""
