"""Models of the T5 family: transformers' encoder, and a decoder that the step loop can drive."""
