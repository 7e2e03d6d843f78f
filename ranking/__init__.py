"""Ranking: coarse and fine models, their training and export, and the rules applied after them."""
