"""The forward on CPUs: C++, prebuilt or compiled for this processor when it is first needed."""
