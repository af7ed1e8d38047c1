"""The commands that answer prompts: run, chat, explain."""
