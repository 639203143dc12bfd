"""What travels on the wire: the strict reading of HTTP/1 requests, and the connections they come on."""
