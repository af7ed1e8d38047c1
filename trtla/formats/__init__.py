"""What lies on disk: checkpoints, engine folders and their limits, read and written."""
