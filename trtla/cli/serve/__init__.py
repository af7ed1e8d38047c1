"""The commands that speak OpenAI's API: serve and batch."""
