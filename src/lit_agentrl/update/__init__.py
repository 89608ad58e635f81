"""What happens to a batch between two optimizer steps; no Lightning."""
