"""Search for the first wrong turn of failed episodes, and its pairs: Step-DPO."""
