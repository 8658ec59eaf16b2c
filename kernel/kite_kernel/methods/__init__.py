"""Answers of the kernel's own RPC methods, one file a family."""
