"""Settings as plain values, without torch: triples, drafters, sampling, executor, server."""
