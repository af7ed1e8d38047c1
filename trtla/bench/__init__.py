"""`trtla bench`: lookahead, plain decoding and peers on the same prompts, in rounds."""
