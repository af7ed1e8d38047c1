"""What `auto` drafts: chances, costs, and the draft that pays."""
