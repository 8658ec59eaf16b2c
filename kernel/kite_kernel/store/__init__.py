"""What outlives the process: durable streams and facts."""
