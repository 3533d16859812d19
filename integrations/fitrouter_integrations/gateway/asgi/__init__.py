"""ASGI middleware, bodies, streams and limits of connections."""
