"""Drafters: what guesses the target's next tokens. One small class each, behind `draft.Drafter`."""
