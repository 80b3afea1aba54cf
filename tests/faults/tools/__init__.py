"""Tools of the fault tests: clients, proxies, disks that fail, hooks in processes."""
