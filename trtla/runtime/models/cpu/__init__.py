"""The CPU's own forward: C++ compiled for this processor when it is first needed."""
