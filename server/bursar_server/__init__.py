"""The server: protected tables, the one door out, the fits, and who may ask for them."""
