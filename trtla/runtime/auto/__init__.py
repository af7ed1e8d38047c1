"""What `auto` feeds: costs, and the nodes of candidate trees that pay."""
