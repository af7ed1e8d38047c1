"""Texts that come in: prompts, prompt sets, CNN/DailyMail, calibration texts."""
