"""Bulk jobs: a file of requests in, a folder of answers out, whatever interrupts them."""
