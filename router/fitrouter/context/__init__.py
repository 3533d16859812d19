"""Context features of a request and the text encoders."""
