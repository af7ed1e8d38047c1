"""Conversations for `trtla chat`: settings, commands, and their terminal and piped forms."""
