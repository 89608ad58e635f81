"""Run the stages of a pipeline."""
