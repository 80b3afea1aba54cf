"""The simulated world: disks, networks, machines, stores, nodes and clusters."""
