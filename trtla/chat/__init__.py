"""What `trtla chat` does: conversation, settings, commands; its terminal and its piped form."""
