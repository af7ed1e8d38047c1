"""Input texts: prompts, prompt sets, CNN/DailyMail, calibration texts, a sample model."""
