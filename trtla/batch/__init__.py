"""Batch jobs: a file of requests in, a folder of answers out, resumable after any interruption."""
