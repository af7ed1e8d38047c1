"""OpenAI's API without a network: bodies of requests, their checks, answers and errors as JSON."""
