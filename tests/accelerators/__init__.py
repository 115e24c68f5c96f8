"""Compiles jaxdml for GPUs and TPUs that the machine need not have, and checks the compiled programs."""
