"""A shop in text: products, goals, search, pages, and what a purchase is worth."""
