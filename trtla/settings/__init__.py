"""What people choose: triples, drafters, sampling, executor options. Plain values, no torch."""
