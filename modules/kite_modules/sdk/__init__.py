"""For authors of modules."""
