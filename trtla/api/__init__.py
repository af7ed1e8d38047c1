"""OpenAI's API without a network: request bodies, their checks, answers and errors as JSON."""
