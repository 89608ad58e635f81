"""Certificates of estimators: their expected update in small games, compared with exact gradients."""
