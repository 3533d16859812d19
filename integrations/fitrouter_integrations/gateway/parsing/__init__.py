"""Parsers of request bodies, and the OpenAPI schema that they follow."""
