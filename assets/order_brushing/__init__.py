"""A login, an order and a payment with nothing between them: a strict pattern of three."""
