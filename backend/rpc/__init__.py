"""The wire between processes: frames, handshake, connections, client and server of the backend interface."""
