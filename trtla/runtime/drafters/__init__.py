"""Drafters, which propose the target's next tokens: one small class each, behind
`draft.Drafter`."""
