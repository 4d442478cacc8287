"""Descriptions for ``windeck describe``: what files hold, and the Python that loads them."""
