"""Games of other libraries as text games; one file imports each optional library."""
