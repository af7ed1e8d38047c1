"""The commands that answer requests in the format of OpenAI's API: serve and batch."""
