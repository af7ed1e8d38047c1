"""Models on disk: checkpoints, engine folders and Hugging Face folders, read and written."""
