"""The candidate trees in plain Python: what their C++ is compared with."""
