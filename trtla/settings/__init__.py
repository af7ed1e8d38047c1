"""What people choose: triples, drafters, sampling, the executor's options. Plain values, no torch."""
