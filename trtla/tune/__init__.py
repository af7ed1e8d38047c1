"""`trtla tune`: the best lookahead triple for a model, a machine, batch sizes and kinds of text."""
