"""The way in for people: what a browser needs to speak with this instance."""
