"""Compiles jaxdml for GPUs and TPUs that are not there, and reads what their compilers made of it."""
