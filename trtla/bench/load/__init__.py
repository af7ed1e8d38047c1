"""Load on an OpenAI-compatible server: requests, arrivals, timings, checks of texts."""
