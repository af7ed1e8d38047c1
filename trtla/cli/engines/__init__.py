"""The commands that write and inspect files: convert, build, inspect, doctor."""
