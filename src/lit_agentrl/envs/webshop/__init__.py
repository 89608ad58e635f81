"""A shop in text: products, goals, search, pages, and the reward of a purchase."""
