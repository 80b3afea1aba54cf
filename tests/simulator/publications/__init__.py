"""Publications in the simulator: their clients, the judge of what these get, and the worlds that have them."""
