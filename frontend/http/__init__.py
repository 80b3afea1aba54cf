"""HTTP as the frontend sees it: ASGI, paths, bodies, long polls."""
